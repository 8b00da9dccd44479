-- The intent of a step: the whole decision, its usage and all its journal rows, before any call runs (invariant 1).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, step, base (the step that must have ended; -1 = a coroutine
--       agent's position, which may be written out of order), op, counts as a step (0|1),
--       decision (JSON or blob reference),
--       rows (list of: row id, row JSON, status, effect '1' when the tool has effects), blobs (list), events (list)
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {OUT_OF_ORDER, step, ended}
-- EVENTS: those handed in (llm.attempt, step.started, tool.started, tool.replayed …)
local id, fence, step, base, op, counted, decision = take(), take(), take_n(), take_n(), take(), take_n(), take()
local n_rows, rows = take_list(4)
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'step', 'ended_step', 'cancel', 'steps', 'calls',
  'open_calls', 'fx_open', 'prompt_tokens', 'completion_tokens', 'requests')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' then return {BAD_STATE, f[2]} end
local field = f[3] .. ':' .. step
local known = redis.call('HGET', P .. 's:' .. id, field .. '.op')
local now = now_ms()
if known == op then return {1, now, f[6] or ''} end
local last, ended = tonumber(f[4]), tonumber(f[5])
if known or step < 1 or (base >= 0 and (step ~= last + 1 or ended ~= base)) then return {OUT_OF_ORDER, last, ended} end

redis.call('HSET', P .. 's:' .. id, field, decision, field .. '.op', op)
local started, opened, was_unknown, was_not_started = 0, 0, 0, 0
for i = 0, n_rows - 1 do
  local b = rows + i * 4
  local row, status, effect = ARGV[b + 1], ARGV[b + 3], ARGV[b + 4]
  local before = redis.call('HGET', journal, row .. '.s')
  -- What was said of the call before must not be taken for this one's outcome when it is sent once more.
  if before then remember(id, string.match(before, '^[^|]*|[^|]*|[^|]*|([^|]*)|'), now) end
  if before and effect == '1' then
    if string.find(before, '^unknown|') then was_unknown = was_unknown + 1 end
    if string.find(before, '^started|') then opened = opened - 1 end
    if string.find(before, '^aborted_before_dispatch|') then was_not_started = was_not_started + 1 end
  end
  if status == 'started' then
    started = started + 1
    if effect == '1' then opened = opened + 1 end
  end
  -- A repeat under the same key keeps the time of the first try: it is the age of the key.
  local began = now
  if before and (string.find(before, '^unknown|') or string.find(before, '^started|')) then
    began = string.match(before, '^[^|]*|([^|]*)|')
  end
  redis.call('HSET', journal, row, ARGV[b + 2], row .. '.s', status .. '|' .. began .. '||' .. op .. '|0')
  redis.call('HDEL', journal, row .. '.o', row .. '.w')
end
local spent = emit_list(id, f[3], n_events, events)
redis.call('HSET', key, 'step', math.max(step, last), 'sends', 0, 'l2_used_ms', 0,
  'steps', plus(f[7], counted), 'calls', plus(f[8], started), 'open_calls', plus(f[9], started),
  'fx_open', plus(f[10], opened), 'prompt_tokens', plus(f[11], spent.prompt),
  'completion_tokens', plus(f[12], spent.completion), 'requests', plus(f[13], spent.requests))
redis.call('HDEL', key, 'activity')
if was_unknown > 0 then redis.call('HINCRBY', key, 'fx_unknown', -was_unknown) end
if was_not_started > 0 then redis.call('HINCRBY', key, 'fx_not_started', -was_not_started) end
keep_cost(key, spent)
keep_blobs(id, n_blobs, blobs)
return {1, now, f[6] or ''}
