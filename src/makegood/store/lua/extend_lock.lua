-- STANDALONE
-- A lock that is held lasts longer; one that has run out, too, while nobody has taken it.
-- KEYS: 1 hash of the lock
-- ARGV: run_id, fence, holder, lifetime from now in ms
-- RETURNS: {1, until_ms} | {0} it is not held by this acquisition any more
-- EVENTS: none
local f = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'holder', 'until')
if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return {0} end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local ends = math.max(tonumber(f[4]), now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ends - now + 3600000)
return {1, ends}
