-- A worker's heartbeat in one shard: renews the lease and compares what it holds with what the store says.
-- It also succeeds after the expiry, as long as nobody took the runs over (invariant 5).
-- KEYS: 1 prefix of the shard
-- ARGV: worker, lease ms, runs that the worker believes to hold (list)
-- RETURNS: {now_ms, how many are lost, lost run ids…, run ids that it holds without knowing…}
-- EVENTS: none
local worker, lease = take(), take_n()
local n_runs, first = take_list(1)
local now = now_ms()
local known, lost, found = {}, {}, {}
for i = 1, n_runs do
  local id = ARGV[first + i]
  known[id] = true
  if redis.call('SISMEMBER', held_key(worker), id) == 0 then lost[#lost + 1] = id end
end
for _, id in ipairs(redis.call('SMEMBERS', held_key(worker))) do
  if not known[id] then found[#found + 1] = id end
end
write_when_full()
if #found == 0 and #lost == n_runs then
  redis.call('ZREM', P .. 'lease', worker)
  redis.call('HDEL', P .. 'beats', worker)
else
  redis.call('ZADD', P .. 'lease', now + lease, worker)
  redis.call('HSET', P .. 'beats', worker, now)
end
local reply = {now, #lost}
for _, id in ipairs(lost) do reply[#reply + 1] = id end
for _, id in ipairs(found) do reply[#reply + 1] = id end
return reply
