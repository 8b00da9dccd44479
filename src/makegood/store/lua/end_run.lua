-- The end of an attempt: the run ends, or what it left behind is cleaned up first. A run with an unknown outcome, a
-- registered lock or (when it did not succeed) a declared resource never ends any other way.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, target state (terminal, or queued: the next attempt, after cleaning), end state (terminal; the
--       target, or what the run ends as when its next attempt cannot begin), error code ('' = none), error message,
--       output (JSON or blob reference, '' = none), cause of a cleaning, what it undoes (none|policy|all),
--       effects stand that it has to undo (0|1), latencies (list), blobs (list), events (list)
-- RETURNS: {1, state} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (attempt.ended), then run.ended when it ended
local id, fence, op, target, ends_as, code, message, output, cause, undo, needed =
  take(), take(), take(), take(), take(), take(), take(), take(), take(), take(), take()
local n_latencies, latencies = take_list(4)
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'end_op', 'end_answer', 'resources')
if not f[1] then return {NOT_FOUND} end
if f[4] == op then return {1, f[5]} end
if f[1] ~= fence then return {STALE_FENCE} end
local resources = undo ~= 'none' and tonumber(f[6] or 0) or 0
local to = (needed == '1' or resources > 0 or is_unsettled(key)) and 'cleaning' or target
if not ALLOWED[f[2] .. '>' .. to] or not TERMINAL[ends_as] or (to ~= 'cleaning' and not TERMINAL[to]) then
  return {BAD_STATE, f[2]}
end

local now = now_ms()
write_when_full()
emit_all(id, f[3], n_events, events)
if to == 'cleaning' then
  begin_cleaning(id, f[2], now, cause, target, ends_as, code, message, undo)
else
  finish(id, f[2], to, code, message, now)
  emit(id, f[3], 'run.ended', '', '', end_text(to, code))
end
redis.call('HSET', key, 'end_op', op, 'end_answer', to, 'output', output)
count_latencies(now, n_latencies, latencies)
keep_blobs(id, n_blobs, blobs)
return {1, to}
