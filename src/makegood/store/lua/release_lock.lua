-- STANDALONE
-- Give a lock back: only the acquisition that holds it can (compare and delete in one step).
-- KEYS: 1 hash of the lock
-- ARGV: run_id, fence, holder
-- RETURNS: {1} given back, now or by an earlier send of this | {0} somebody else's, or nobody's
-- EVENTS: none
local f = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'holder', 'given_back')
local back = f[4] or ','
if string.find(back, ',' .. ARGV[3] .. ',', 1, true) then return {1} end
if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return {0} end
redis.call('HDEL', KEYS[1], 'owner', 'n', 'fence', 'holder', 'until')
-- The last acquisitions that were given back, newest first: an old send of one must not take the lock again.
redis.call('HSET', KEYS[1], 'given_back', ',' .. ARGV[3] .. string.sub(back, 1, 500))
redis.call('PEXPIRE', KEYS[1], 3600000)
return {1}
