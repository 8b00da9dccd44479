-- A lock is registered with its run before it is acquired, so that whoever cleans up finds it (invariant 13).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, holder (id of the acquisition), name of the lock
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: none
local id, fence, op, holder, name = take(), take(), take(), take(), take()
local key, registered = run_key(id), P .. 'l:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'cancel')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' and f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local now = now_ms()
if is_known(id, op) then return {1, now, f[3] or ''} end -- it may have been taken back since

remember(id, op, now)
redis.call('SADD', registered, string.match(fence, '^[^:]*') .. '|' .. holder .. '|' .. name)
redis.call('HSET', key, 'locks', redis.call('SCARD', registered))
return {1, now, f[3] or ''}
