-- A call whose outcome was unknown is settled: it happened (succeeded) or it did not (failed).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, row id, tool, status (succeeded|failed), outcome JSON or blob reference, tries, blobs (list),
--       events (list)
-- RETURNS: {1, now_ms} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {OUT_OF_ORDER, status, 0} when it is not open
-- EVENTS: those handed in (cleanup.settled)
local id, fence, op, row, tool, status, outcome, tries = take(), take(), take(), take(), take(), take(), take(), take()
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local line = redis.call('HGET', journal, row .. '.s')
if not line then return {NOT_FOUND} end
local now = now_ms()
if string.find(line, '|' .. op .. '|', 1, true) then return {1, now} end
local was, began = string.match(line, '^([^|]*)|([^|]*)|')
if was ~= 'unknown' and was ~= 'started' then return {OUT_OF_ORDER, was, 0} end

write_when_full()
redis.call('HSET', journal, row .. '.s', table.concat({status, began, now, op, tries}, '|'), row .. '.o', outcome)
redis.call('HINCRBY', key, was == 'unknown' and 'fx_unknown' or 'fx_open', -1)
if was == 'started' then redis.call('HINCRBY', key, 'open_calls', -1) end
if status == 'succeeded' then redis.call('HINCRBY', key, 'fx_committed', 1) end
redis.call('HDEL', key, 'activity', 'cl_open')
count_settled(id, row, tool, was, status == 'succeeded' and 'happened' or 'not_happened')
keep_blobs(id, n_blobs, blobs)
emit_all(id, f[3], n_events, events)
return {1, now}
