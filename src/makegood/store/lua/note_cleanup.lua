-- Say from outside what a cleanup is doing, before it starts something that may hang or kill its process.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, activity (JSON, '' = nothing is under way), row id of a call that is about to be sent again or was
--       just closed ('' = none), how often cleanup has sent it in this round, the round, latencies (list),
--       events (list)
-- RETURNS: {1, now_ms} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (tool.retry)
local id, fence, op, activity, row, sends, round = take(), take(), take(), take(), take(), take(), take()
local n_latencies, latencies = take_list(4)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local now = now_ms()
if is_known(id, op) then return {1, now} end

write_when_full()
if activity == '' then redis.call('HDEL', key, 'activity', 'cl_open')
else redis.call('HSET', key, 'activity', activity, 'cl_open', 1) end
if row ~= '' then -- it may land from now on (invariant 4)
  redis.call('HSET', P .. 'j:' .. id, row .. '.r', table.concat({now, sends, round}, '|'))
end
remember(id, op, now)
count_latencies(now, n_latencies, latencies)
emit_all(id, f[3], n_events, events)
return {1, now}
