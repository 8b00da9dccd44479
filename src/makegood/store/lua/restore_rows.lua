-- Calls that a worker had begun and whose acknowledged rows the store has lost, as a failover does, are put back (invariant 3).
-- Not fenced: the fence may be what was lost. Only rows that are missing are added, so that nothing changes where all are
-- there. A run that waits or has ended goes to cleanup with what came back; one that somebody executes or cleans up stays where
-- it is, and cannot end without it.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, attempt of the worker that made the calls, rows (list of: row id, intent (JSON or blob reference),
--       status (final or unknown), outcome (JSON or blob reference), began ms, tries, effect '1' when the tool has effects,
--       step, call key, what the event says (JSON)), blobs (list)
-- RETURNS: {1, how many came back, state} | {NOT_FOUND}
-- EVENTS: tool.ended, with "restored": true
local id, op, attempt = take(), take(), take_n()
local n_rows, rows = take_list(10)
local n_blobs, blobs = take_list(1)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'state', 'attempt', 'calls', 'error_code', 'error_message', 'fx_committed')
local state = f[1]
if not state then return {NOT_FOUND} end
local missing, again = {}, 0
for i = 0, n_rows - 1 do
  local b = rows + i * 10
  local line = redis.call('HGET', journal, ARGV[b + 1] .. '.s')
  if not line then
    missing[#missing + 1] = b
  elseif string.find(line, '|' .. op .. '|', 1, true) then
    again = again + 1
  end
end
if #missing == 0 then return {1, again, state} end

local now = now_ms()
local committed, unknown, not_started = 0, 0, 0
write_when_full()
for _, b in ipairs(missing) do
  local row, status = ARGV[b + 1], ARGV[b + 3]
  redis.call('HSET', journal, row, ARGV[b + 2], row .. '.o', ARGV[b + 4],
    row .. '.s', table.concat({status, ARGV[b + 5], now, op, ARGV[b + 6]}, '|'))
  if ARGV[b + 7] == '1' then
    if status == 'succeeded' then committed = committed + 1 end
    if status == 'unknown' then unknown = unknown + 1 end
    if status == 'aborted_before_dispatch' then not_started = not_started + 1 end
  end
  emit(id, attempt, 'tool.ended', ARGV[b + 8], ARGV[b + 9], ARGV[b + 10])
end
redis.call('HSET', key, 'calls', plus(f[3], #missing), 'fx_committed', plus(f[6], committed))
if unknown > 0 then redis.call('HINCRBY', key, 'fx_unknown', unknown) end
if not_started > 0 then redis.call('HINCRBY', key, 'fx_not_started', not_started) end
keep_blobs(id, n_blobs, blobs)

-- An attempt that begins after cleanup must not be taken for the one that made these calls: it looks for what was done.
local waits = state == 'queued' or state == 'parked'
local ended = TERMINAL[state] and state ~= 'resolved'
if (waits and committed + unknown > 0) or (ended and (unknown > 0 or (committed > 0 and state ~= 'succeeded'))) then
  redis.call('HSET', key, 'attempt', math.max(tonumber(f[2] or 0), attempt))
  redis.call('HSETNX', key, 'started_at', now)
  local keeps_end = ended and ALLOWED['cleaning>' .. state]
  local target, undo = keeps_end and state or 'failed', state == 'succeeded' and 'none' or 'policy'
  local code, message = 'CRASHED', 'The store has lost acknowledged writes of this run; its calls were put back by the worker that had made them.'
  if keeps_end then code, message = f[4] or '', f[5] or '' end
  begin_cleaning(id, state, now, 'crash', target, target, code, message, undo)
  state = 'cleaning'
end
return {1, #missing, state}
