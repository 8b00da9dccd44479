-- Shared by every script (the loader puts it in front, after the table of transitions).
-- Return codes below zero are errors; store/codes.py names them.
local NOT_FOUND, STALE_FENCE, BAD_STATE, KEY_CONFLICT, OUT_OF_ORDER, NOTHING, TOO_MANY = -1, -2, -3, -4, -5, -6, -7

local P = KEYS[1]

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- A cursor over ARGV: take() gives the next argument, take_n() the next as a number.
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function take_n()
  return tonumber(take())
end

local function run_key(id) return P .. 'run:' .. id end

-- The runs that a worker holds in this shard; its lease covers them all.
local function held_key(worker) return P .. 'held:' .. worker end

local function let_go(id, worker)
  if worker then redis.call('SREM', held_key(worker), id) end
end

-- Waiting runs of an agent in the order in which they are claimed; suspects wait apart (invariant 10).
local function queue_key(agent, suspect)
  return P .. (suspect == '1' and 'suspects:' or 'queued:') .. agent
end

-- A run that was let go of or lost is claimed before those that never ran.
local FIRST = 1e13

local function emit(id, attempt, kind, step, call_key, data)
  redis.call('XADD', P .. 'e:' .. id, '*', 't', kind, 'a', attempt, 's', step, 'c', call_key, 'd', data)
end

-- A server that is full refuses a script until it has written something that takes no memory; leases and the outcomes
-- of what was done must not be refused. (The key is never there.)
local function write_when_full()
  redis.call('DEL', P .. 'nothing')
end

-- A list in ARGV is a count followed by its items of `width` arguments; returns where it begins and skips it.
local function take_list(width)
  local n = take_n()
  local from = at
  at = at + n * width
  return n, from
end

-- Events: type, step, call_key, data.
local function emit_all(id, attempt, n, from)
  for i = 0, n - 1 do
    local b = from + i * 4
    emit(id, attempt, ARGV[b + 1], ARGV[b + 2], ARGV[b + 3], ARGV[b + 4])
  end
end

-- Blobs were written ahead with a time to live; what refers to them keeps them.
local function keep_blobs(id, n, from)
  for i = 1, n do
    redis.call('PERSIST', P .. 'b:' .. id .. ':' .. ARGV[from + i])
  end
end

-- Latencies: series, bucket, milliseconds. One hash per series and day, which goes when no percentile looks at it.
local function count_latencies(now, n, from)
  local day = math.floor(now / 86400000)
  for i = 0, n - 1 do
    local b = from + i * 3
    local key = P .. 'lat:' .. ARGV[b + 1] .. ':' .. day
    if redis.call('HINCRBY', key, ARGV[b + 2], 1) == 1 then redis.call('EXPIRE', key, 777600) end -- 9 days
    local peak = redis.call('HGET', key, 'max')
    if not peak or tonumber(peak) < tonumber(ARGV[b + 3]) then
      redis.call('HSET', key, 'max', ARGV[b + 3])
    end
  end
end

-- Operations that leave no row behind are remembered by their id, so that a repetition is known as one
-- (invariant 6). 256 is the longest pipeline, 15 minutes outlast every retry of the client.
local function is_known(id, op)
  return redis.call('ZSCORE', P .. 'o:' .. id, op)
end

local function remember(id, op, now)
  local key = P .. 'o:' .. id
  redis.call('ZADD', key, now, op)
  redis.call('ZREMRANGEBYRANK', key, 0, -257)
  redis.call('PEXPIRE', key, 900000)
end

-- A number of the record as it will be. What every step changes is written by one HSET: six HINCRBY cost more than that.
local function plus(before, by)
  return (tonumber(before) or 0) + by
end

local function count(name)
  redis.call('HINCRBY', P .. 'counters', name, 1)
end

-- The gauges are the sizes of these sets. The caller has checked the transition.
local function move(id, agent, from, to, enqueued_at)
  redis.call('ZREM', P .. 'st:' .. agent .. ':' .. from, id)
  redis.call('ZADD', P .. 'st:' .. agent .. ':' .. to, enqueued_at, id)
  redis.call('HSET', run_key(id), 'state', to)
  redis.call('HINCRBY', run_key(id), 'version', 1)
end

-- The first terminal transition of a run: indexes, effects verdict, counters. What frees memory comes first.
-- `left` says that effects stand which the run's policy wants undone; unknown ones are never clean.
local function finish(id, from, to, code, message, now, left)
  local key = run_key(id)
  redis.call('ZREM', P .. 'due', id)
  redis.call('ZREM', P .. 'expires', id)
  redis.call('HDEL', P .. 'cancels', id)
  redis.call('HDEL', key, 'activity')
  local f = redis.call('HMGET', key, 'agent', 'enqueued_at', 'attempt', 'crashes', 'fx_open', 'fx_unknown', 'counted',
    'worker', 'suspect')
  local agent, open = f[1], tonumber(f[5] or 0)
  redis.call('ZREM', queue_key(agent, f[9]), id)
  let_go(id, f[8])
  local unknown = tonumber(f[6] or 0) + open
  move(id, agent, from, to, f[2])
  redis.call('HSET', key, 'ended_at', now, 'error_code', code, 'error_message', message,
    'fx_open', 0, 'fx_unknown', unknown, 'open_calls', 0, 'counted', 1)
  redis.call('ZADD', P .. 'retain', now, id)
  if not f[7] then
    count('runs_finished_total|' .. agent .. '|' .. to)
    if tonumber(f[3] or 0) > 1 or tonumber(f[4] or 0) > 0 then
      count('retried_runs_total|' .. agent .. '|' .. to)
    end
    if to == 'timed_out' then
      count('timed_out_runs_total|' .. agent .. '|' .. ((unknown == 0 and not left) and 'yes' or 'no'))
    end
  end
end
