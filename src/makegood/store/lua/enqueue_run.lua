-- Record a new run, or find the one that its key already names.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, agent, session, key_digest ('' = no key), key, input (JSON or blob reference), input_digest,
--       expires_in_ms ('' = never), blobs (list of digests), events (list)
-- RETURNS: {1, run_id, state} recorded | {0, run_id, state} already there, same input | {KEY_CONFLICT, run_id, state}
-- EVENTS: run.enqueued
local id, agent, session, key_digest, key, input, input_digest, expires_in =
  take(), take(), take(), take(), take(), take(), take(), take()
local n_blobs, blobs = take_list(1)
local n_events, events = take_list(6)

if redis.call('EXISTS', run_key(id)) == 1 then
  return {1, id, redis.call('HGET', run_key(id), 'state')}
end
if key_digest ~= '' then
  local known = redis.call('GET', P .. 'key:' .. key_digest)
  if known then
    local f = redis.call('HMGET', run_key(known), 'input_digest', 'state')
    if f[1] ~= input_digest then return {KEY_CONFLICT, known, f[2]} end
    if redis.call('SET', P .. 'dup:' .. id, known, 'NX', 'PX', 900000) then count('runs_deduplicated_total|' .. agent) end
    return {0, known, f[2]}
  end
end

local now = now_ms()
if key_digest ~= '' then redis.call('SET', P .. 'key:' .. key_digest, id) end
redis.call('HSET', run_key(id), 'id', id, 'agent', agent, 'session', session, 'key', key, 'key_digest', key_digest,
  'input', input, 'input_digest', input_digest, 'state', 'queued', 'attempt', 0, 'fence_n', 0, 'step', 0,
  'ended_step', 0, 'version', 1, 'enqueued_at', now)
redis.call('ZADD', P .. 'st:' .. agent .. ':queued', now, id)
enter_state(id, nil, 'queued')
redis.call('SADD', P .. 'agents', agent)
redis.call('ZADD', queue_key(agent), now, id)
if expires_in ~= '' then
  redis.call('HSET', run_key(id), 'expires_at', now + tonumber(expires_in))
  redis.call('ZADD', P .. 'expires', now + tonumber(expires_in), id)
end
keep_blobs(id, n_blobs, blobs)
count('runs_enqueued_total|' .. agent)
emit_all(id, 0, n_events, events)
return {1, id, 'queued'}
