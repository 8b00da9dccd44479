-- A lock was released: its registration goes, with those of earlier fences that this one has taken the lock over from.
-- Without a holder, as cleanup asks, every registration of the name goes.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, holder ('' = all), name of the lock
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: none
local id, fence, op, holder, name = take(), take(), take(), take(), take()
local key, registered = run_key(id), P .. 'l:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'cancel')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' and f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local now = now_ms()
if is_known(id, op) then return {1, now, f[3] or ''} end

write_when_full()
local mine = tonumber(string.match(fence, '^[^:]*'))
remember(id, op, now)
for _, member in ipairs(redis.call('SMEMBERS', registered)) do
  local n, who, what = string.match(member, '^([^|]*)|([^|]*)|(.*)$')
  if what == name and (holder == '' or who == holder or tonumber(n) < mine) then
    redis.call('SREM', registered, member)
  end
end
redis.call('HSET', key, 'locks', redis.call('SCARD', registered))
return {1, now, f[3] or ''}
