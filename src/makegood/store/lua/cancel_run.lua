-- Cancel: a waiting run ends at once, or is cleaned up first; a running one is told; one in cleaning gets the verdict and goes
-- on (invariant 18). Who asked stands in the audit log only (CONTRACT F2).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, cause, actor, reason
-- RETURNS: {1, state after, state before} | {0, state, state} nothing to cancel | {NOT_FOUND} | {BAD_STATE, state}
-- EVENTS: run.ended when the run was waiting and has nothing to clean up
local id, op, cause, actor, reason = take(), take(), take(), take(), take()
local key = run_key(id)
local f = redis.call('HMGET', key, 'state', 'attempt', 'cancel', 'cancel_op', 'cl_cause', 'cl_cancelled', 'cl_target',
  'cl_undo')
local state = f[1]
if not state then return {NOT_FOUND} end
if f[4] == op then return {1, state, state} end
local waits, works = state == 'queued' or state == 'parked', state == 'running' or state == 'stopping'
local cleans = state == 'cleaning'
if TERMINAL[state] or (works and f[3]) or (cleans and (f[5] == 'manual' or f[6])) then return {0, state, state} end
if not waits and not works and not cleans then return {BAD_STATE, state} end

local now = now_ms()
local text = 'The run was cancelled.'
if waits and is_dirty(key) then
  begin_cleaning(id, state, now, 'cancel', 'cancelled', 'cancelled', 'CANCELLED', text, 'policy')
elseif waits then
  finish(id, state, 'cancelled', 'CANCELLED', text, now)
  emit(id, f[2], 'run.ended', '', '', '{"state":"cancelled","code":"CANCELLED"}')
elseif cleans then
  -- Whoever has the cleanup in hand learns of it at its end, and looks again at what has to be undone.
  redis.call('HSET', key, 'cl_cancelled', 1, 'cl_end', 'cancelled', 'cl_code', 'CANCELLED', 'cl_message', text,
    'error_code', 'CANCELLED', 'error_message', text, 'cl_undo', f[8] == 'all' and 'all' or 'policy',
    'cl_target', f[7] == 'requires_manual_review' and f[7] or 'cancelled')
else
  redis.call('HSET', key, 'cancel', cause)
  redis.call('HSET', P .. 'cancels', id, cause)
end
redis.call('HSET', key, 'cancel_op', op)
audit(id, 'cancel', actor, reason)
return {1, redis.call('HGET', key, 'state'), state}
