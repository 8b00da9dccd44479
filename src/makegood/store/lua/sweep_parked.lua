-- Parked runs that are due go back to the queue, each once.
-- KEYS: 1 prefix of the shard
-- ARGV: how many at the most
-- RETURNS: {now_ms, run ids…}
-- EVENTS: none (the claim that follows says run.continued)
local limit = take_n()
local now = now_ms()
local reply = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, limit)) do
  local key = run_key(id)
  local f = redis.call('HMGET', key, 'state', 'agent', 'enqueued_at', 'continued', 'suspect')
  redis.call('ZREM', P .. 'due', id)
  if f[1] == 'parked' then
    move(id, f[2], 'parked', 'queued', f[3])
    redis.call('HDEL', key, 'due_at')
    redis.call('ZADD', queue_key(f[2], f[5]), f[4] == '1' and now - FIRST or now, id)
    reply[#reply + 1] = id
  end
end
return reply
