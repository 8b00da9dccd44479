-- STANDALONE
-- Cleanup takes a run's lock back, whichever of its fences up to the given one holds it, and lets no older one take it again.
-- KEYS: 1 hash of the lock, 2 floor of this run: the lowest fence number that may still acquire
-- ARGV: run_id, number of cleanup's fence
-- RETURNS: {1} the run does not hold it any more | {STALE_FENCE} a newer fence of the run holds it
-- EVENTS: none
local STALE_FENCE = -2
local n = tonumber(ARGV[2])
local f = redis.call('HMGET', KEYS[1], 'owner', 'n')
if f[1] == ARGV[1] and tonumber(f[2]) > n then return {STALE_FENCE} end
local floor = tonumber(redis.call('GET', KEYS[2]) or 0)
redis.call('DEL', KEYS[2]) -- takes no memory: so that a full server does not refuse the rest
redis.call('SET', KEYS[2], string.format('%.0f', math.max(floor, n)), 'PX', 86400000)
if f[1] == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'owner', 'n', 'fence', 'holder', 'until')
  redis.call('PEXPIRE', KEYS[1], 3600000)
end
return {1}
