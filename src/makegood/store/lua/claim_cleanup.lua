-- Claim the cleanup of a shard that has been due longest among those this worker serves, under a fence like an attempt's.
-- KEYS: 1 prefix of the shard
-- ARGV: nonce of this claim, worker, lease ms, alone (1: suspects only), run id of the message ('' = is not counted when it
--       comes in vain), agents served (list)
-- RETURNS: {1, run_id, now_ms, fields and values of the record…} | {NOTHING}; the same nonce gets the first answer
-- EVENTS: cleanup.started
local nonce, worker, lease, alone, hint = take(), take(), take_n(), take(), take()
local n_agents, agents = take_list(1)
local now = now_ms()

local earlier = claimed_before(nonce, now)
if earlier then return earlier end
if earlier == false then return {NOTHING} end

local id, agent, best
for i = 1, n_agents do
  local head = redis.call('ZRANGEBYSCORE', cleaning_key(ARGV[agents + i], alone), '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1)
  if head[1] and (not best or tonumber(head[2]) < best) then
    id, agent, best = head[1], ARGV[agents + i], tonumber(head[2])
  end
end
if not id then return in_vain(nonce, hint) end

local key = run_key(id)
local f = redis.call('HMGET', key, 'fence_n', 'attempt', 'cl_passes', 'cl_cause', 'cl_at', 'cl_waited')
redis.call('SET', P .. 'claim:' .. nonce, id, 'PX', 60000)
redis.call('ZREM', cleaning_key(agent, alone), id)
redis.call('SADD', held_key(worker), id)
redis.call('ZADD', P .. 'lease', 'GT', now + lease, worker)
redis.call('HSETNX', P .. 'beats', worker, now)
redis.call('HSET', key, 'fence', (tonumber(f[1]) + 1) .. ':' .. nonce, 'fence_n', tonumber(f[1]) + 1, 'worker', worker,
  'claimed_at', now)
if not f[6] then
  redis.call('HSET', key, 'cl_waited', 1)
  observe('queue:cleanup', 'run_queue_wait_seconds', math.max(0, now - tonumber(f[5])), BUCKETS.step)
end
redis.call('HDEL', key, 'activity', 'due_at', 'cl_open')
redis.call('HINCRBY', key, 'version', 1)
local data = '{"pass":' .. plus(f[3], 1) .. ',"cause":"' .. (f[4] or '') .. '","worker":"' .. worker .. '"}'
emit(id, f[2], 'cleanup.started', '', '', data)
return claimed(id, now)
