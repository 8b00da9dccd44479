-- Whether a run that timed out had in fact finished (CONTRACT A8), by an operator or by the agent's `verify` during its cleanup.
-- A verdict counts once; a definite one may follow `unknown`, and nothing may follow a definite one.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence of the cleanup ('' = an operator), op, verdict (true_kill|false_kill|unknown), actor, reason
-- RETURNS: {1, answer `verdict|at_ms|by`} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state, error code}
--          | {KEY_CONFLICT, the verdict that stands, by}
-- EVENTS: none
local id, fence, op, verdict, actor, reason = take(), take(), take(), take(), take(), take()
local key = run_key(id)

local f = redis.call('HMGET', key, 'state', 'fence', 'agent', 'error_code', 'cl_target', 'to_verdict', 'to_at', 'to_by')
local state, code = f[1], f[4] or ''
if not state then return {NOT_FOUND} end
local known = redis.call('GET', P .. 'd:' .. id .. ':' .. op)
if known then return {1, known} end
if fence ~= '' and f[2] ~= fence then return {STALE_FENCE} end
local timed_out = code == 'STEP_TIMEOUT' or code == 'RUN_TIMEOUT' or code == 'TOTAL_TIMEOUT'
local over = state == 'timed_out' or state == 'requires_manual_review' or state == 'resolved'
  or (state == 'cleaning' and f[5] ~= 'queued')
if not timed_out or not over then return {BAD_STATE, state, code} end
if f[6] and f[6] ~= verdict and f[6] ~= 'unknown' then return {KEY_CONFLICT, f[6], f[8]} end

local now = now_ms()
write_when_full()
local answer = verdict .. '|' .. string.format('%.0f', now) .. '|' .. actor
if f[6] == verdict then
  answer = verdict .. '|' .. f[7] .. '|' .. f[8]
else
  redis.call('HSET', key, 'to_verdict', verdict, 'to_at', string.format('%.0f', now), 'to_by', actor)
  audit(id, 'timeout_verdict', actor, reason, '{"verdict":"' .. verdict .. '"}')
  count('timeout_verdicts_total|' .. f[3] .. '|' .. verdict)
  if fence == '' then count('operator_actions_total|timeout_verdict|done') end
end
if fence ~= '' then redis.call('HDEL', key, 'activity', 'cl_open') end
redis.call('SET', P .. 'd:' .. id .. ':' .. op, answer, 'PX', 900000)
return {1, answer}
