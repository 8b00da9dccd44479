-- Say from outside what a run is doing (backing off, which call hangs), append events, remember the sends of the step.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, activity (JSON, '' = none), sends (model requests of the open step; '' = unchanged),
--       stopping (1: running becomes stopping), row id of a started call ('' = none), whether it waits for its next try (1) or
--       that begins (0), latencies (list), events (list)
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (llm.retry, tool.retry, run.stopping …)
local id, fence, op, activity, sends, stopping, row, pauses = take(), take(), take(), take(), take(), take(), take(), take()
local n_latencies, latencies = take_list(4)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'cancel', 'agent', 'enqueued_at')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' then return {BAD_STATE, f[2]} end
local now = now_ms()
if is_known(id, op) then return {1, now, f[4] or ''} end
local stops = stopping == '1' and f[2] == 'running'
if stops and not ALLOWED[f[2] .. '>stopping'] then return {BAD_STATE, f[2]} end

if activity == '' then redis.call('HDEL', key, 'activity') else redis.call('HSET', key, 'activity', activity) end
if sends ~= '' then redis.call('HSET', key, 'sends', sends) end
if row ~= '' and pauses == '1' then redis.call('HSET', P .. 'j:' .. id, row .. '.w', 1) end
if row ~= '' and pauses ~= '1' then redis.call('HDEL', P .. 'j:' .. id, row .. '.w') end
remember(id, op, now)
if stops then move(id, f[5], 'running', 'stopping', f[6]) end
count_latencies(now, n_latencies, latencies)
emit_all(id, f[3], n_events, events)
return {1, now, f[4] or ''}
