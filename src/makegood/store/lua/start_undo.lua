-- The intent of a compensation: durable before its body runs. One that succeeded, or that a person has accepted as it
-- stands, is never run again (CONTRACT E9). Tries count per round, which an operator's retry begins anew; a try whose worker
-- was lost is repeated and not counted again (invariant 9).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, row id, round, most tries of a round, activity (JSON)
-- RETURNS: {1, now_ms, number of this try} | {0, now_ms, status} nothing to do | {TOO_MANY, tries} | {NOT_FOUND}
--          | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: none
local id, fence, op, row, round, most, activity = take(), take(), take(), take(), take(), take_n(), take()
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local now = now_ms()
if redis.call('HEXISTS', journal, row) == 0 then return {NOT_FOUND} end
local line = redis.call('HGET', journal, row .. '.u')
local tries, began, lost = 0, now, 0
if line then
  local status, first, _, last_op, done, of = string.match(line, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
  if status == 'succeeded' or status == 'kept' then return {0, now, status} end
  if last_op == op then return {1, now, tonumber(done)} end
  if is_known(id, op) then return {0, now, status} end -- an old send of it: that try is over
  began = first
  if of == round then tries = tonumber(done) end
  if status == 'started' and of == round then lost = 1 end
end
tries = tries - lost
if tries >= most then return {TOO_MANY, tries} end

write_when_full()
remember(id, op, now)
redis.call('HSET', journal, row .. '.u', table.concat({'started', began, '', op, tries + 1, round}, '|'))
redis.call('HSET', key, 'activity', activity, 'cl_open', 1)
if not line then redis.call('HINCRBY', key, 'undo_open', 1) end -- until one succeeds, or a person says what is so
return {1, now, tries + 1}
