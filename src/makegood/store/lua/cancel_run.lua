-- Cancel: a waiting run ends at once, a running one is told; who asked stands in the audit log only (CONTRACT F2).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, cause, actor, reason
-- RETURNS: {1, state after, state before} | {0, state, state} nothing to cancel | {NOT_FOUND} | {BAD_STATE, state}
-- EVENTS: run.ended when the run was waiting
local id, op, cause, actor, reason = take(), take(), take(), take(), take()
local key = run_key(id)
local f = redis.call('HMGET', key, 'state', 'attempt', 'cancel', 'cancel_op')
local state = f[1]
if not state then return {NOT_FOUND} end
if f[4] == op then return {1, state, state} end
local waits, works = state == 'queued' or state == 'parked', state == 'running' or state == 'stopping'
if TERMINAL[state] or (works and f[3]) then return {0, state, state} end
if not waits and not works then return {BAD_STATE, state} end

local now = now_ms()
if waits then
  finish(id, state, 'cancelled', 'CANCELLED', 'The run was cancelled.', now)
  emit(id, f[2], 'run.ended', '', '', '{"state":"cancelled","code":"CANCELLED"}')
else
  redis.call('HSET', key, 'cancel', cause)
  redis.call('HSET', P .. 'cancels', id, cause)
end
redis.call('HSET', key, 'cancel_op', op)
redis.call('XADD', P .. 'audit', '*', 'action', 'cancel', 'run_id', id, 'actor', actor, 'reason', reason)
return {1, redis.call('HGET', key, 'state'), state}
