-- Outcomes of calls, each sent when it is known; the last one of a step travels with the step's end (invariant 2).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, ended step (0 = the step goes on),
--       outcomes (list of: row id, status, outcome JSON or blob reference, tries, effect '1' when the tool has effects),
--       latencies (list of: series, bucket, ms, result), blobs (list), events (list)
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {OUT_OF_ORDER, step, ended}
-- EVENTS: those handed in (tool.ended, step.ended)
local id, fence, op, ended_step = take(), take(), take(), take_n()
local n_outcomes, outcomes = take_list(5)
local n_latencies, latencies = take_list(4)
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'step', 'ended_step', 'cancel', 'open_calls', 'fx_open',
  'fx_committed')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' then return {BAD_STATE, f[2]} end
local now = now_ms()
if ended_step > tonumber(f[4]) then return {OUT_OF_ORDER, f[4], f[5]} end
local lines, again = {}, is_known(id, op)
for i = 0, n_outcomes - 1 do
  local line = redis.call('HGET', journal, ARGV[outcomes + i * 5 + 1] .. '.s')
  if not line then return {NOT_FOUND} end
  if string.find(line, '|' .. op .. '|', 1, true) then again = true end
  lines[i] = line
end
if again then return {1, now, f[6] or ''} end
write_when_full()
if n_outcomes == 0 then remember(id, op, now) end

local closed, open, committed, unknown, not_started = 0, 0, 0, 0, 0
for i = 0, n_outcomes - 1 do
  local b = outcomes + i * 5
  local row, status, effect = ARGV[b + 1], ARGV[b + 2], ARGV[b + 5]
  local was, began = string.match(lines[i], '^([^|]*)|([^|]*)|')
  if was == 'started' or was == 'planned' then
    redis.call('HSET', journal, row .. '.s', status .. '|' .. began .. '|' .. now .. '|' .. op .. '|' .. ARGV[b + 4],
      row .. '.o', ARGV[b + 3])
    if was == 'started' then closed = closed + 1 end
    if effect == '1' then
      if was == 'started' then open = open - 1 end
      if status == 'succeeded' then committed = committed + 1 end
      if status == 'unknown' then unknown = unknown + 1 end
      if status == 'aborted_before_dispatch' then not_started = not_started + 1 end
    end
  end
end
redis.call('HSET', key, 'ended_step', math.max(ended_step, tonumber(f[5])), 'open_calls', plus(f[7], -closed),
  'fx_open', plus(f[8], open), 'fx_committed', plus(f[9], committed))
if unknown > 0 then redis.call('HINCRBY', key, 'fx_unknown', unknown) end
if not_started > 0 then redis.call('HINCRBY', key, 'fx_not_started', not_started) end
count_latencies(now, n_latencies, latencies)
keep_blobs(id, n_blobs, blobs)
emit_all(id, f[3], n_events, events)
return {1, now, f[6] or ''}
