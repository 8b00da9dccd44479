-- The end of a run: its state, output or error, verdict on effects and counters, once.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, target state, error code ('' = none), error message, output (JSON or blob reference, '' = none),
--       effects stand that were to be undone (0|1), latencies (list), blobs (list), events (list)
-- RETURNS: {1, state} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (attempt.ended, run.ended)
local id, fence, op, target, code, message, output, left =
  take(), take(), take(), take(), take(), take(), take(), take()
local n_latencies, latencies = take_list(3)
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(4)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'end_op')
if not f[1] then return {NOT_FOUND} end
if f[4] == op then return {1, target} end
if f[1] ~= fence then return {STALE_FENCE} end
if not ALLOWED[f[2] .. '>' .. target] or not TERMINAL[target] then return {BAD_STATE, f[2]} end

local now = now_ms()
finish(id, f[2], target, code, message, now, left == '1')
redis.call('HSET', key, 'end_op', op, 'output', output)
count_latencies(now, n_latencies, latencies)
keep_blobs(id, n_blobs, blobs)
emit_all(id, f[3], n_events, events)
return {1, target}
