-- Workers whose lease has expired in this shard; what happens to their runs is `lose_worker`.
-- KEYS: 1 prefix of the shard
-- ARGV: how many at the most
-- RETURNS: {now_ms, workers…}
-- EVENTS: none
local limit = take_n()
local now = now_ms()
local reply = {now}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'lease', '-inf', now, 'LIMIT', 0, limit)) do
  reply[#reply + 1] = worker
end
return reply
