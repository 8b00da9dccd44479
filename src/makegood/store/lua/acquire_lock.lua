-- STANDALONE
-- Take a lock that is free, that has run out, or that an older fence of the same run holds (CONTRACT E7).
-- KEYS: 1 hash of the lock (owner, n: number of the fence, fence, holder, until, token, given_back), 2 floor of this run
-- ARGV: run_id, number of the fence, fence, holder (id of this acquisition; sent again, it gets the first answer), lifetime in ms
-- RETURNS: {1, token, until_ms} taken; the token grows with every taking | {0, ms until it runs out} | {STALE_FENCE}
-- EVENTS: none
local STALE_FENCE = -2
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local run_id, n, fence, holder = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local floor = redis.call('GET', KEYS[2])
if floor and n < tonumber(floor) then return {STALE_FENCE} end
local f = redis.call('HMGET', KEYS[1], 'owner', 'n', 'fence', 'holder', 'until', 'token', 'given_back')
local ends = tonumber(f[5] or 0)
-- An old send of it: it was given back since, or ('-') given up without having got the lock.
if f[7] and string.find(f[7], ',' .. holder .. ',', 1, true) then return {1, tonumber(f[6]), now} end
if f[1] == run_id and tonumber(f[2]) > n then return {STALE_FENCE} end
if f[7] and string.find(f[7], ',-' .. holder .. ',', 1, true) then return {0, 0} end
if f[1] and ends > now then
  if f[1] == run_id and f[3] == fence and f[4] == holder then return {1, tonumber(f[6]), ends} end
  if f[1] ~= run_id or tonumber(f[2]) == n then return {0, ends - now} end
end

local token = math.max(tonumber(f[6] or 0) + 1, tonumber(t[1]) * 1000000 + tonumber(t[2]))
ends = now + tonumber(ARGV[5])
redis.call('HSET', KEYS[1], 'owner', run_id, 'n', n, 'fence', fence, 'holder', holder,
  'until', string.format('%.0f', ends), 'token', string.format('%.0f', token))
-- The token outlives the lock: should the server's clock step back, the next one is larger still.
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[5]) + 3600000)
return {1, token, ends}
