-- Planned rows are admitted: they start now (invariant 1).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, rows (list of: row id, effect '1' when the tool has effects), events (list)
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {OUT_OF_ORDER, 0, 0}
-- EVENTS: those handed in (tool.started)
local id, fence, op = take(), take(), take()
local n_rows, rows = take_list(2)
local n_events, events = take_list(6)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'cancel')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' then return {BAD_STATE, f[2]} end
local now = now_ms()
if is_known(id, op) then return {1, now, f[4] or ''} end
for i = 0, n_rows - 1 do
  local line = redis.call('HGET', journal, ARGV[rows + i * 2 + 1] .. '.s')
  if not line then return {NOT_FOUND} end
  if not string.find(line, '^planned|') then return {OUT_OF_ORDER, 0, 0} end
end

remember(id, op, now)
local opened = 0
for i = 0, n_rows - 1 do
  redis.call('HSET', journal, ARGV[rows + i * 2 + 1] .. '.s', 'started|' .. now .. '||' .. op .. '|0')
  if ARGV[rows + i * 2 + 2] == '1' then opened = opened + 1 end
end
if n_rows > 0 then
  redis.call('HINCRBY', key, 'calls', n_rows)
  redis.call('HINCRBY', key, 'open_calls', n_rows)
end
if opened > 0 then redis.call('HINCRBY', key, 'fx_open', opened) end
emit_all(id, f[3], n_events, events)
return {1, now, f[4] or ''}
