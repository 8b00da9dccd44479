-- How a compensation ended. In the same script as its success the effect stops to stand, and the generation is over.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, row id, tool, status (succeeded|failed|unknown), detail (JSON), events (list)
-- RETURNS: {1, now_ms} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {OUT_OF_ORDER, status, 0} when none is under way
-- EVENTS: those handed in (cleanup.compensated, cleanup.failed)
local id, fence, op, row, tool, status, detail = take(), take(), take(), take(), take(), take(), take()
local n_events, events = take_list(6)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local line, call = redis.call('HGET', journal, row .. '.u'), redis.call('HGET', journal, row .. '.s')
if not line then return {NOT_FOUND} end
local now = now_ms()
local was, began, _, last_op, tries, round = string.match(line, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
if last_op == op or is_known(id, op) then return {1, now} end -- it may be an old send, and the next try under way
if was ~= 'started' then return {OUT_OF_ORDER, was, 0} end

write_when_full()
remember(id, op, now)
redis.call('HSET', journal, row .. '.u', table.concat({status, began, now, op, tries, round}, '|'), row .. '.v', detail)
redis.call('HDEL', key, 'activity', 'cl_open')
count('compensations_total|' .. tool .. '|' .. status)
if status == 'succeeded' then
  redis.call('HINCRBY', key, 'undo_open', -1)
  local stood = string.match(call, '^([^|]*)|')
  local from = stood == 'succeeded' and 'fx_committed' or stood == 'unknown' and 'fx_unknown' or 'fx_open'
  redis.call('HINCRBY', key, from, -1)
  redis.call('HINCRBY', key, 'fx_compensated', 1)
  if stood == 'started' then redis.call('HINCRBY', key, 'open_calls', -1) end
  if stood ~= 'succeeded' then count_settled(id, row, tool, stood, 'compensated') end
end
emit_all(id, f[3], n_events, events)
return {1, now}
