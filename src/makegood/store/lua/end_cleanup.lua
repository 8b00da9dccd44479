-- The run is made good: it ends, or its next attempt begins, as the record says. What it says may have changed since the claim
-- (a cancel is the verdict, invariant 18): then somebody has to look again at what is to be undone.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, target state that the cleanup worked for (terminal or queued), result (clean|partial),
--       latencies (list), events (list)
-- RETURNS: {1, state} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
--          | {UNSETTLED} something is still open, or another target is to be worked for
-- EVENTS: those handed in (cleanup.ended), then run.ended when it ended
local id, fence, op, target, result = take(), take(), take(), take(), take()
local n_latencies, latencies = take_list(4)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'end_op', 'end_answer', 'agent', 'cl_cause', 'cl_target',
  'enqueued_at', 'cl_code', 'cl_message')
if not f[1] then return {NOT_FOUND} end
if f[4] == op then return {1, f[5]} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' or not ALLOWED['cleaning>' .. target] or (target ~= 'queued' and not TERMINAL[target]) then
  return {BAD_STATE, f[2]}
end
if is_unsettled(key) or target ~= f[8] then return {UNSETTLED} end

local now = now_ms()
write_when_full()
emit_all(id, f[3], n_events, events)
count('cleanups_total|' .. f[6] .. '|' .. (f[7] or '') .. '|' .. result)
measure_cleanup(key, f[6], now)
if target == 'queued' then
  count('retries_total|attempt|' .. (f[10] or ''))
  detach(id, key)
  forget_cleaning(key)
  redis.call('HDEL', key, 'error_code', 'error_message')
  redis.call('HSET', key, 'fence', 'cleaned:' .. op, 'continued', 0, 'output', '')
  move(id, f[6], 'cleaning', 'queued', f[9])
  redis.call('ZADD', queue_key(f[6]), now, id)
else
  finish(id, 'cleaning', target, f[10] or '', f[11] or '', now)
  emit(id, f[3], 'run.ended', '', '', end_text(target, f[10] or ''))
end
redis.call('HSET', key, 'end_op', op, 'end_answer', target)
count_latencies(now, n_latencies, latencies)
return {1, target}
