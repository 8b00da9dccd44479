-- A worker is lost: its runs of this shard go back to the queue, each once, to be continued before others.
-- Every loss counts in `crashes`; only deaths of a process by itself count for poison: the second one that catches the
-- run with a call in flight makes it a suspect (invariant 10). A run that was continued as often as one attempt
-- may be is queued with `cannot_continue`: whoever claims it decides about a new attempt (CONTRACT C11). Cleanups wait to be
-- claimed again; the loss is no pass of theirs, and their deaths count apart: three in quarantine bring them to a person.
-- A worker that lives gives up one run that it cannot end (`only this run`): it is lost like the others, and goes to a person
-- when its last claim was there to end it.
-- KEYS: 1 prefix of the shard
-- ARGV: worker, only when its lease has expired (0|1), a process death that counts (0|1), max continuations,
--       deaths in quarantine that end a run, how many at the most, only this run ('' = all that it holds)
-- RETURNS: {now_ms, how many suspects there are among them, run ids that wait now…}
-- EVENTS: run.ended when the run was told to stop and has nothing to clean up
local worker, only_expired, death, max_continuations, max_deaths, limit, only =
  take(), take(), take(), take_n(), take_n(), take_n(), take()
local now = now_ms()
local reply = {now, 0}
local expires = redis.call('ZSCORE', P .. 'lease', worker)
if only_expired == '1' and expires and tonumber(expires) > now then return reply end
local beat = tonumber(redis.call('HGET', P .. 'beats', worker) or now)
local held = redis.call('SRANDMEMBER', held_key(worker), limit)
if only ~= '' then held = redis.call('SISMEMBER', held_key(worker), only) == 1 and {only} or {} end

local function lose_cleanup(id, key, f)
  local deaths, alone = plus(f[14], 0), plus(f[15], 0)
  if death == '1' and f[16] == '1' then deaths = redis.call('HINCRBY', key, 'cl_deaths', 1) end
  if death == '1' and f[17] == '1' then alone = redis.call('HINCRBY', key, 'cl_alone', 1) end
  redis.call('HINCRBY', key, 'crashes', 1)
  local losses = redis.call('HINCRBY', key, 'cl_losses', 1)
  redis.call('HDEL', key, 'activity', 'worker', 'cl_open')
  local poison = alone >= max_deaths or losses > max_continuations
  local suspect = not poison and (f[17] == '1' or deaths >= 2)
  if poison then redis.call('HSET', key, 'cl_poison', 1) end -- whoever claims it runs nothing of it and asks a person
  redis.call('HSET', key, 'fence', 'lost:' .. now, 'cl_lost_at', now, 'cl_suspect', suspect and 1 or 0)
  redis.call('HINCRBY', key, 'version', 1)
  -- One that could not even be handed to a person is tried again once an hour: it neither spins nor vanishes.
  local due = only ~= '' and f[19] and now + 3600000 or now
  redis.call('ZADD', cleaning_key(f[4], suspect and '1' or '0'), due, id)
  if suspect then reply[2] = reply[2] + 1 end
  reply[#reply + 1] = id
end

for _, id in ipairs(held) do
  local key = run_key(id)
  local f = redis.call('HMGET', key, 'state', 'worker', 'attempt', 'agent', 'enqueued_at', 'claimed_at', 'l3_used_ms',
    'continuations', 'cancel', 'process_deaths', 'open_calls', 'suspect', 'quarantine_deaths',
    'cl_deaths', 'cl_alone', 'cl_open', 'cl_suspect', 'cannot_continue', 'cl_poison')
  let_go(id, worker)
  if (f[1] == 'running' or f[1] == 'stopping') and f[2] == worker then
    local open_calls, deaths, alone = tonumber(f[11] or 0), plus(f[10], 0), plus(f[13], 0)
    redis.call('HINCRBY', key, 'crashes', 1)
    if death == '1' then deaths = redis.call('HINCRBY', key, 'process_deaths', 1) end
    if death == '1' and f[12] == '1' then alone = redis.call('HINCRBY', key, 'quarantine_deaths', 1) end
    if f[9] and is_dirty(key) then
      begin_cleaning(id, f[1], now, 'cancel', 'cancelled', 'cancelled', 'CANCELLED', 'The run was cancelled.', 'policy')
      reply[#reply + 1] = id
    elseif f[9] then
      finish(id, f[1], 'cancelled', 'CANCELLED', 'The run was cancelled.', now)
      emit(id, f[3], 'run.ended', '', '', '{"state":"cancelled","code":"CANCELLED"}')
    elseif alone >= max_deaths then
      local message = 'The run took down every process that executed it, also alone in quarantine.'
      begin_cleaning(id, f[1], now, 'crash', 'requires_manual_review', 'failed', 'CRASHED', message, 'policy')
      reply[#reply + 1] = id
    elseif only ~= '' and f[18] then
      local message = 'The store refused the end of the run, whoever tried.'
      begin_cleaning(id, f[1], now, 'crash', 'requires_manual_review', 'failed', 'CRASHED', message, 'policy')
      reply[#reply + 1] = id
    else
      local suspect = f[12] == '1' or (death == '1' and deaths >= 2 and open_calls > 0)
      local used = tonumber(f[7] or 0) + math.max(0, math.max(beat, tonumber(f[6])) - tonumber(f[6]))
      if tonumber(f[8] or 0) >= max_continuations then
        redis.call('HSET', key, 'cannot_continue', 1)
      else
        redis.call('HINCRBY', key, 'continuations', 1)
      end
      redis.call('HSET', key, 'continued', 1, 'l3_used_ms', used, 'fence', 'lost:' .. now, 'released', 'lost',
        'lost_at', now, 'silent_at', only_expired == '1' and beat or now, 'suspect', suspect and 1 or 0)
      redis.call('HDEL', key, 'activity', 'worker')
      move(id, f[4], f[1], 'queued', f[5])
      redis.call('ZADD', queue_key(f[4], suspect and '1' or '0'), now - FIRST, id)
      if suspect then reply[2] = reply[2] + 1 end
      reply[#reply + 1] = id
    end
  elseif f[1] == 'cleaning' and f[2] == worker then
    lose_cleanup(id, key, f)
  end
end
if redis.call('SCARD', held_key(worker)) == 0 then
  redis.call('ZREM', P .. 'lease', worker)
  redis.call('HDEL', P .. 'beats', worker)
end
return reply
