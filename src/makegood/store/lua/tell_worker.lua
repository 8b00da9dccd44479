-- STANDALONE
-- A worker process says that it is alive and what it holds, or that it ends; those that fell silent are forgotten.
-- KEYS: 1 sorted set: worker → until when it counts as alive, 2 hash: worker → what it said
-- ARGV: worker, how long that holds in ms (0 = it ends), facts (JSON)
-- RETURNS: 1
-- EVENTS: none
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, 10)) do
  redis.call('ZREM', KEYS[1], worker)
  redis.call('HDEL', KEYS[2], worker)
end
return 1
