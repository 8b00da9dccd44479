-- A cleanup worker lets go of a run that stays in cleaning: until an unknown outcome may be settled, for its next pass, or
-- because the worker shuts down.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, due_in_ms, a pass is used up (0|1), state to work for from now on ('' = as before), activity (JSON,
--       '' = none)
-- RETURNS: {1, passes used} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: none
local id, fence, op, due_in, used, target, activity = take(), take(), take(), take_n(), take_n(), take(), take()
local key = run_key(id)

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'release_op', 'cl_passes', 'agent', 'worker', 'cl_suspect')
if not f[1] then return {NOT_FOUND} end
if f[4] == op then return {1, tonumber(f[5] or 0)} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end

local now = now_ms()
write_when_full()
let_go(id, f[7])
redis.call('HDEL', key, 'worker', 'activity', 'cl_open')
redis.call('HSET', key, 'fence', 'waits:' .. op, 'release_op', op, 'cl_passes', plus(f[5], used), 'due_at', now + due_in)
if activity ~= '' then redis.call('HSET', key, 'activity', activity) end
if target ~= '' and redis.call('HGET', key, 'cl_target') == 'queued' then redis.call('HSET', key, 'cl_target', target) end
redis.call('HINCRBY', key, 'version', 1)
redis.call('ZADD', cleaning_key(f[6], f[8] == '1' and '1' or '0'), now + due_in, id)
if due_in == 0 then redis.call('SET', P .. 'woken:' .. id, 1, 'PX', 5000) end -- whoever let go of it announces it
return {1, plus(f[5], used)}
