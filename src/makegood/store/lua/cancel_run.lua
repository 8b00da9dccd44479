-- Cancel: a waiting run ends at once, a running one is told; who asked stands in the audit log only (CONTRACT F2).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, cause, actor, reason
-- RETURNS: {1, state after, state before} | {0, state, state} nothing to cancel | {NOT_FOUND}
-- EVENTS: run.ended when the run was waiting
local id, cause, actor, reason = take(), take(), take(), take()
local key = run_key(id)
local f = redis.call('HMGET', key, 'state', 'attempt', 'cancel')
local state = f[1]
if not state then return {NOT_FOUND} end
if TERMINAL[state] or f[3] then return {0, state, state} end

local now = now_ms()
if state == 'queued' or state == 'parked' then
  finish(id, state, 'cancelled', 'CANCELLED', 'The run was cancelled.', now)
  emit(id, f[2], 'run.ended', '', '', '{"state":"cancelled","code":"CANCELLED"}')
elseif state == 'running' or state == 'stopping' then
  redis.call('HSET', key, 'cancel', cause)
  redis.call('HSET', P .. 'cancels', id, cause)
else
  return {BAD_STATE, state}
end
redis.call('XADD', P .. 'audit', '*', 'action', 'cancel', 'run_id', id, 'actor', actor, 'reason', reason)
return {1, redis.call('HGET', key, 'state'), state}
