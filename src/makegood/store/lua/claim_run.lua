-- Claim the oldest due run of the shard that this worker serves; continued ones come first (their score is negative).
-- The message's run id is only a hint of the shard (invariant 12).
-- KEYS: 1 prefix of the shard
-- ARGV: nonce of this claim, worker, lease ms, quarantine (1: suspects only), run id of the message ('' = is not counted when
--       it comes in vain), agents served (list)
-- RETURNS: {1, run_id, now_ms, fields and values of the record…} | {NOTHING}; the same nonce gets the first answer
-- EVENTS: run.claimed, and attempt.started or run.continued (neither for a run that cannot be continued)
local nonce, worker, lease, quarantine, hint = take(), take(), take_n(), take(), take()
local n_agents, agents = take_list(1)
local now = now_ms()

local earlier = claimed_before(nonce, now)
if earlier then return earlier end
if earlier == false then return {NOTHING} end

-- The head of each served agent's queue; expired runs are left to the sweeper.
local id, f, best
for i = 1, n_agents do
  local queue = queue_key(ARGV[agents + i], quarantine)
  local heads = redis.call('ZRANGE', queue, 0, 49, 'WITHSCORES')
  for h = 1, #heads, 2 do
    local score = tonumber(heads[h + 1])
    if best and score >= best then break end
    local c = redis.call('HMGET', run_key(heads[h]), 'agent', 'state', 'expires_at', 'attempt', 'fence_n', 'continued',
      'enqueued_at', 'started_at', 'released', 'lost_at', 'cannot_continue',
      'silent_at')
    if c[2] == 'queued' and not (c[3] and tonumber(c[3]) <= now) then
      id, f, best = heads[h], c, score
      break
    end
  end
end
if not id then return in_vain(nonce, hint) end

local key = run_key(id)
local attempt, continued = tonumber(f[4]), f[6] == '1'
if not continued then
  attempt = attempt + 1
  redis.call('HSET', key, 'attempt', attempt, 'step', 0, 'ended_step', 0, 'l3_used_ms', 0, 'l2_used_ms', 0,
    'sends', 0, 'continuations', 0, 'open_calls', 0)
  redis.call('HDEL', key, 'cannot_continue')
end
local fence = (tonumber(f[5]) + 1) .. ':' .. nonce
redis.call('SET', P .. 'claim:' .. nonce, id, 'PX', 60000)
redis.call('HSET', P .. 'claimed', quarantine .. ':' .. f[1], string.format('%.0f', now))
redis.call('ZREM', queue_key(f[1], quarantine), id)
redis.call('SADD', held_key(worker), id)
redis.call('ZADD', P .. 'lease', 'GT', now + lease, worker)
redis.call('HSETNX', P .. 'beats', worker, now)
redis.call('ZREM', P .. 'expires', id)
move(id, f[1], 'queued', 'running', f[7])
redis.call('HSET', key, 'fence', fence, 'fence_n', tonumber(f[5]) + 1, 'worker', worker, 'claimed_at', now, 'continued', 0)
redis.call('HDEL', key, 'activity', 'expires_at')
if quarantine == '1' then -- a step that ends after this one proves the suspect
  redis.call('HSET', key, 'alone_after', redis.call('HGET', key, 'ended_step') or 0)
end
if not f[8] then
  redis.call('HSET', key, 'started_at', now)
  observe('queue:runs', 'run_queue_wait_seconds', math.max(0, now - tonumber(f[7])), BUCKETS.step)
end
emit(id, attempt, 'run.claimed', '', '', '{"worker":"' .. worker .. '"}')
if continued and f[11] then return claimed(id, now) end -- neither goes on nor begins anew until the claimer has decided
if f[10] then
  count('recoveries_total|' .. (continued and 'continued' or 'restarted'))
  local lost_ms = math.max(0, now - tonumber(f[12] or f[10]))
  observe('all:', 'recovery_seconds', lost_ms, BUCKETS.step)
  count_hour('recovery_seconds|sum_ms', lost_ms)
  redis.call('HDEL', key, 'lost_at', 'silent_at')
end
if continued then
  count('redeliveries_total|resumed')
  emit(id, attempt, 'run.continued', '', '', '{"after":"' .. (f[9] or '') .. '"}')
else
  emit(id, attempt, 'attempt.started', '', '', '{}')
end
return claimed(id, now)
