-- A worker lets go of a run that goes on later: handed over, parked, or its next attempt.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, target (queued|parked), continued (1: same attempt goes on, 0: a new attempt begins),
--       due_in_ms (parked: when it may go on), max continuations ('' = this one does not count), sends of the open step,
--       L2 used ms of the open step, latencies (list), events (list)
-- RETURNS: {1, state} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state} | {TOO_MANY, continuations}
--          | {UNSETTLED} a new attempt, though something has to be cleaned up first
-- EVENTS: those handed in (run.handed_over, run.parked, attempt.ended)
local id, fence, op, target, continued, due_in, max_continuations, sends, l2_used =
  take(), take(), take(), take(), take(), take_n(), take(), take(), take()
local n_latencies, latencies = take_list(4)
local n_events, events = take_list(6)
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'agent', 'enqueued_at', 'claimed_at', 'l3_used_ms',
  'continuations', 'release_op', 'worker', 'cancel', 'suspect', 'alone_after', 'ended_step', 'resources')
if not f[1] then return {NOT_FOUND} end
if f[9] == op then return {1, target} end
if f[1] ~= fence then return {STALE_FENCE} end
if not ALLOWED[f[2] .. '>' .. target] or (target ~= 'queued' and target ~= 'parked') then return {BAD_STATE, f[2]} end
if max_continuations ~= '' and tonumber(f[8] or 0) >= tonumber(max_continuations) then return {TOO_MANY, f[8]} end
if continued == '0' and (is_unsettled(key) or tonumber(f[15] or 0) > 0) then return {UNSETTLED} end

local now = now_ms()
if f[11] then due_in = 0 end -- told to stop meanwhile: it is claimed at once, to end
local used = tonumber(f[7] or 0) + (now - tonumber(f[6]))
write_when_full()
if max_continuations ~= '' then redis.call('HINCRBY', key, 'continuations', 1) end
redis.call('HSET', key, 'continued', continued, 'l3_used_ms', used, 'sends', sends, 'l2_used_ms', l2_used,
  'release_op', op, 'fence', 'released:' .. op, 'released', target == 'parked' and 'parked' or 'handed_over')
let_go(id, f[10])
redis.call('HDEL', key, 'activity', 'worker', 'alone_after')
-- Only a step that ended in quarantine proves a suspect (invariant 10).
local suspect = f[12]
if suspect == '1' and f[13] and tonumber(f[14] or 0) > tonumber(f[13]) then suspect = '0' end
if suspect ~= '1' then redis.call('HDEL', key, 'suspect') end
redis.call('HDEL', P .. 'cancels', id)
move(id, f[4], f[2], target, f[5])
if target == 'parked' then
  redis.call('HSET', key, 'due_at', now + due_in)
  redis.call('ZADD', P .. 'due', now + due_in, id)
elseif continued == '1' then
  redis.call('ZADD', queue_key(f[4], suspect), now - FIRST, id)
else
  redis.call('ZADD', queue_key(f[4], suspect), now, id)
end
count_latencies(now, n_latencies, latencies)
emit_all(id, f[3], n_events, events)
return {1, target}
