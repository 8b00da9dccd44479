-- A resource is declared before it is created or changed (CONTRACT E2). One that stands declared keeps its first prior
-- state: what a repeat finds there may be the run's own work. After it was rolled back it is declared anew.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, resource key, body (JSON or blob reference), blobs (list)
-- RETURNS: {1, now_ms, cancel cause or ''} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: none
local id, fence, op, resource, body = take(), take(), take(), take(), take()
local n_blobs, blobs = take_list(1)
local key, declared = run_key(id), P .. 'r:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'cancel', 'resources', 'resource_seq')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'running' and f[2] ~= 'stopping' and f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local now = now_ms()
local line = redis.call('HGET', declared, resource .. '.s')
local status = line and string.match(line, '^([^|]*)|')
if status == 'declared' then return {1, now, f[3] or ''} end

if status == 'failed' then -- a rollback did not succeed: what was there before is still what the first prior says
  local seq, since = string.match(line, '|([^|]*)|([^|]*)$')
  redis.call('HSET', declared, resource .. '.s', table.concat({'declared', now, op, 0, 0, seq, since}, '|'))
else
  local seq = plus(f[5], 1)
  redis.call('HSET', declared, resource, body, resource .. '.s',
    table.concat({'declared', now, op, 0, 0, seq, now}, '|'))
  redis.call('HSET', key, 'resources', plus(f[4], 1), 'resource_seq', seq)
  keep_blobs(id, n_blobs, blobs)
end
redis.call('HDEL', declared, resource .. '.v')
return {1, now, f[3] or ''}
