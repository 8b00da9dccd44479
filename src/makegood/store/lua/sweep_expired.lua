-- Queued runs whose `expires_in` has passed end as expired, each once.
-- KEYS: 1 prefix of the shard
-- ARGV: how many at the most
-- RETURNS: {now_ms, run ids…}
-- EVENTS: run.ended
local limit = take_n()
local now = now_ms()
local reply = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'expires', '-inf', now, 'LIMIT', 0, limit)) do
  local f = redis.call('HMGET', run_key(id), 'state', 'attempt')
  redis.call('ZREM', P .. 'expires', id)
  if f[1] == 'queued' or f[1] == 'parked' then
    finish(id, f[1], 'expired', 'EXPIRED', 'The run waited in the queue longer than its expires_in allows.', now)
    emit(id, f[2], 'run.ended', '', '', '{"state":"expired","code":"EXPIRED"}')
    reply[#reply + 1] = id
  end
end
return reply
