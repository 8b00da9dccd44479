-- A worker is lost: its runs of this shard go back to the queue, each once, to be continued before others.
-- A second process death that catches a run with a call in flight makes it a suspect (DESIGN invariant 10).
-- KEYS: 1 prefix of the shard
-- ARGV: worker, only when its lease has expired (0|1), a process death that counts (0|1), max continuations,
--       deaths in quarantine that end a run, how many at the most
-- RETURNS: {now_ms, how many suspects there are among them, run ids that wait now…}
-- EVENTS: run.ended when the run cannot be continued
local worker, only_expired, death, max_continuations, max_deaths, limit =
  take(), take(), take(), take_n(), take_n(), take_n()
local now = now_ms()
local reply = {now, 0}
local expires = redis.call('ZSCORE', P .. 'lease', worker)
if only_expired == '1' and expires and tonumber(expires) > now then return reply end
local beat = tonumber(redis.call('HGET', P .. 'beats', worker) or now)
local held = redis.call('SRANDMEMBER', held_key(worker), limit)

local function give_up(id, from, attempt, message)
  finish(id, from, 'failed', 'CRASHED', message, now)
  emit(id, attempt, 'run.ended', '', '', '{"state":"failed","code":"CRASHED"}')
end

for _, id in ipairs(held) do
  local key = run_key(id)
  local f = redis.call('HMGET', key, 'state', 'worker', 'attempt', 'agent', 'enqueued_at', 'claimed_at', 'l3_used_ms',
    'continuations', 'cancel', 'crashes', 'open_calls', 'suspect', 'deaths')
  let_go(id, worker)
  if (f[1] == 'running' or f[1] == 'stopping') and f[2] == worker then
    local crashes, open_calls, deaths = tonumber(f[10] or 0), tonumber(f[11] or 0), tonumber(f[13] or 0)
    if death == '1' then crashes = redis.call('HINCRBY', key, 'crashes', 1) end
    if death == '1' and f[12] == '1' then deaths = redis.call('HINCRBY', key, 'deaths', 1) end
    if f[9] then
      finish(id, f[1], 'cancelled', 'CANCELLED', 'The run was cancelled.', now)
      emit(id, f[3], 'run.ended', '', '', '{"state":"cancelled","code":"CANCELLED"}')
    elseif deaths >= max_deaths then
      give_up(id, f[1], f[3], 'The run took down every process that executed it, also alone in quarantine.')
    elseif tonumber(f[8] or 0) >= max_continuations then
      give_up(id, f[1], f[3], 'The run lost its worker more often than one attempt may.')
    else
      local suspect = f[12] == '1' or (death == '1' and crashes >= 2 and open_calls > 0)
      local used = tonumber(f[7] or 0) + math.max(0, math.max(beat, tonumber(f[6])) - tonumber(f[6]))
      redis.call('HINCRBY', key, 'continuations', 1)
      redis.call('HSET', key, 'continued', 1, 'l3_used_ms', used, 'fence', 'lost:' .. now, 'released', 'lost',
        'lost_at', now, 'suspect', suspect and 1 or 0)
      redis.call('HDEL', key, 'activity', 'worker')
      move(id, f[4], f[1], 'queued', f[5])
      redis.call('ZADD', queue_key(f[4], suspect and '1' or '0'), now - FIRST, id)
      if suspect then reply[2] = reply[2] + 1 end
      reply[#reply + 1] = id
    end
  end
end
if redis.call('SCARD', held_key(worker)) == 0 then
  redis.call('ZREM', P .. 'lease', worker)
  redis.call('HDEL', P .. 'beats', worker)
end
return reply
