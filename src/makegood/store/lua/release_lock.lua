-- STANDALONE
-- Give a lock back: only the acquisition that holds it can (compare and delete in one step).
-- KEYS: 1 hash of the lock
-- ARGV: run_id, fence, holder
-- RETURNS: {1} given back, now or by an earlier send of this | {0} somebody else's, or nobody's
-- EVENTS: none
local holder = ARGV[3]
local f = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'holder', 'given_back')
local back = f[4] or ','
if string.find(back, ',' .. holder .. ',', 1, true) then return {1} end
if string.find(back, ',-' .. holder .. ',', 1, true) then return {0} end
local mine = f[1] == ARGV[1] and f[2] == ARGV[2] and f[3] == holder
redis.call('HDEL', KEYS[1], 'nothing') -- takes no memory: so that a full server does not refuse the rest
if mine then redis.call('HDEL', KEYS[1], 'owner', 'n', 'fence', 'holder', 'until') end
-- The last acquisitions that are over, newest first, with '-' those that had not got the lock: an old send of one must not
-- take it, nobody would give it back.
redis.call('HSET', KEYS[1], 'given_back', ',' .. (mine and '' or '-') .. holder .. string.sub(back, 1, 500))
if redis.call('PTTL', KEYS[1]) < 3600000 or mine then redis.call('PEXPIRE', KEYS[1], 3600000) end
return {mine and 1 or 0}
