-- Cleanup gives up: the run waits for a person, with everything that is open.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, code, message, items (JSON or blob reference), row ids of unknown calls that a person was ever
--       asked about (text), blobs (list), events (list)
-- RETURNS: {1, how often the run has come to a person} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (cleanup.ended, review.opened)
local id, fence, op, code, message, items, told = take(), take(), take(), take(), take(), take(), take()
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'end_op', 'reviews')
if not f[1] then return {NOT_FOUND} end
if f[4] == op then return {1, tonumber(f[5])} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end

write_when_full()
emit_all(id, f[3], n_events, events)
local times = enter_review(id, code, message, items, now_ms())
redis.call('HSET', key, 'rv_told', told, 'end_op', op, 'end_answer', 'requires_manual_review')
keep_blobs(id, n_blobs, blobs)
return {1, times}
