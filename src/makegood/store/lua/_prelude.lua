-- Shared by every script (the loader puts it in front, after the table of transitions).
-- Return codes below zero are errors; store/codes.py names them.
local NOT_FOUND, STALE_FENCE, BAD_STATE, KEY_CONFLICT, OUT_OF_ORDER, NOTHING, TOO_MANY, UNSETTLED, OLD_VERSION = -1, -2, -3, -4, -5, -6, -7, -8, -9

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

-- Cleanups by the time when they are due; suspects wait apart.
local function cleaning_key(agent, alone)
  return P .. (alone == '1' and 'cleaning_alone:' or 'cleaning:') .. agent
end

-- A run that was let go of or lost is claimed before those that never ran.
local FIRST = 1e13

-- `end_code` '' is no error.
local function end_text(state, end_code)
  local quoted = end_code ~= '' and '"' .. end_code .. '"' or 'null'
  return '{"state":"' .. state .. '","code":' .. quoted .. '}'
end

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

-- A number of the record as it will be. What every step changes is written by one HSET: six HINCRBY cost more than that.
local function plus(before, by)
  return (tonumber(before) or 0) + by
end

-- What is counted once, in the script that makes it true: for ever, and in its hour.
local hour
local function count_hour(name, by)
  hour = hour or math.floor(now_ms() / 3600000)
  local key = P .. 'h:' .. hour
  if by > 0 and redis.call('HINCRBY', key, name, by) == by then redis.call('EXPIRE', key, HOURS_KEPT_S) end
end

local function count(name)
  redis.call('HINCRBY', P .. 'counters', name, 1)
  count_hour(name, 1)
end

-- Counters of one tool, agent, model or queue: a hash each, listed so that the exporter finds it.
local function add(series, name, by)
  if redis.call('HINCRBY', P .. 'c:' .. series, name, by) == by then redis.call('SADD', P .. 'series', series) end
end

-- One value of a histogram: the bucket that it is in, and the sum. One HSET costs less than two HINCRBY.
local function observe(series, name, value, bounds)
  local bucket = name .. '|inf'
  for i = 1, #bounds do
    if value <= bounds[i][1] then
      bucket = name .. '|' .. bounds[i][2]
      break
    end
  end
  local key, sum = P .. 'c:' .. series, name .. '|sum'
  local f = redis.call('HMGET', key, bucket, sum)
  local is_new = redis.call('HSET', key, bucket, plus(f[1], 1), sum, plus(f[2], value)) > 0
  if is_new then redis.call('SADD', P .. 'series', series) end
end

-- A call that is still under way has one more try, whose end nobody told, unless it only waited for its next one.
local function count_cut(id, row, tool)
  if redis.call('HEXISTS', P .. 'j:' .. id, row .. '.w') == 0 then add('tool:' .. tool, 'calls_total|aborted', 1) end
end

-- An outcome that was unknown is not any more.
local function count_settled(id, row, tool, was, how)
  count('unknown_outcomes_total|' .. tool .. '|' .. how)
  if was == 'started' then count_cut(id, row, tool) end
end

-- What is under way when its run ends (of a worker that was lost; reads, or what a person leaves as it is).
local function count_left(id)
  local fields = redis.call('HGETALL', P .. 'j:' .. id)
  for i = 1, #fields, 2 do
    local row = string.match(fields[i], '^(.*)%.s$')
    if row and string.find(fields[i + 1], '^started|') then
      local tool = string.match(redis.call('HGET', P .. 'j:' .. id, row) or '', '"tool":"([^"]*)"')
      if tool then count_cut(id, row, tool) end
    end
  end
end

-- Counters that travel with an event, one a line: a name of `count`, or `@series>field`.
local function count_all(names)
  for name in string.gmatch(names, '[^\n]+') do
    local series, field = string.match(name, '^@([^>]*)>(.*)$')
    if series then add(series, field, 1) else count(name) end
  end
end

-- What a reply of a model has cost, `prompt completion estimated cost model` (cost '-' = unknown); adds it to `spent`.
local function spend(line, spent)
  local prompt, completion, estimated, cost, model = string.match(line, '^(%d+) (%d+) ([01]) (%S+) (.*)$')
  prompt, completion, cost = tonumber(prompt), tonumber(completion), tonumber(cost)
  local series = P .. 'c:model:' .. model
  local f = redis.call('HMGET', series, 'tokens_total|prompt', 'tokens_total|completion', 'cost_nano_usd')
  if not f[1] then redis.call('SADD', P .. 'series', 'model:' .. model) end
  local sums = {plus(f[1], prompt), plus(f[2], completion)}
  if cost then
    redis.call('HSET', series, 'tokens_total|prompt', sums[1], 'tokens_total|completion', sums[2], 'cost_nano_usd',
      string.format('%.0f', plus(f[3], math.floor(cost * 1e9 + 0.5))))
    spent.cost = (spent.cost or 0) + cost
  else
    redis.call('HSET', series, 'tokens_total|prompt', sums[1], 'tokens_total|completion', sums[2])
  end
  spent.prompt, spent.completion = spent.prompt + prompt, spent.completion + completion
  if estimated == '1' then spent.estimated = true end
end

-- Events: type, step, call_key, data, counters, what a model's reply has cost ('' = none is told of). Returns what the record
-- has to add up: requests to models, tokens, cost (nil when no reply has a price), whether some number is an estimate.
local function emit_list(id, attempt, n, from)
  local spent = {['requests'] = 0, ['prompt'] = 0, ['completion'] = 0}
  for i = 0, n - 1 do
    local b = from + i * 6
    emit(id, attempt, ARGV[b + 1], ARGV[b + 2], ARGV[b + 3], ARGV[b + 4])
    if ARGV[b + 1] == 'llm.attempt' then spent.requests = spent.requests + 1 end
    if ARGV[b + 5] ~= '' then count_all(ARGV[b + 5]) end
    if ARGV[b + 6] ~= '' then spend(ARGV[b + 6], spent) end
  end
  return spent
end

-- The price of replies, in the record.
local function keep_cost(key, spent)
  if spent.cost then redis.call('HINCRBYFLOAT', key, 'cost_usd', string.format('%.17g', spent.cost)) end
  if spent.estimated then redis.call('HSET', key, 'estimated', 1) end
end

local function emit_all(id, attempt, n, from)
  local spent, key = emit_list(id, attempt, n, from), run_key(id)
  if spent.requests > 0 then redis.call('HINCRBY', key, 'requests', spent.requests) end
  if spent.prompt + spent.completion > 0 then
    redis.call('HINCRBY', key, 'prompt_tokens', spent.prompt)
    redis.call('HINCRBY', key, 'completion_tokens', spent.completion)
  end
  keep_cost(key, spent)
end

-- Blobs were written ahead with a time to live; what refers to them keeps them.
local function keep_blobs(id, n, from)
  for i = 1, n do
    redis.call('PERSIST', P .. 'b:' .. id .. ':' .. ARGV[from + i])
  end
end

-- Which series are histograms for ever, beside their daily buckets.
local HISTOGRAMS = {
  ['tool'] = {'tool', 'call_duration_seconds', BUCKETS.call},
  ['step'] = {'agent', 'step_duration_seconds', BUCKETS.step},
}

-- Latencies: series, bucket, milliseconds, result. One hash per series and day, which goes when no percentile looks at it.
local function count_latencies(now, n, from)
  local day = math.floor(now / 86400000)
  for i = 0, n - 1 do
    local b = from + i * 4
    local kind, name = string.match(ARGV[b + 1], '^([^:]*):(.*)$')
    local histogram = HISTOGRAMS[kind]
    if histogram then
      local result = ARGV[b + 4]
      local field = result == '' and histogram[2] or histogram[2] .. '|' .. result
      observe(histogram[1] .. ':' .. name, field, tonumber(ARGV[b + 3]), histogram[3])
    end
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

-- Who has been in a state since when; runs that have ended do not wait.
local function enter_state(id, from, to)
  if from then redis.call('ZREM', P .. 'since:' .. from, id) end
  if not TERMINAL[to] then redis.call('ZADD', P .. 'since:' .. to, now_ms(), id) end
end

-- The gauges are the sizes of these sets. The caller has checked the transition.
local function move(id, agent, from, to, enqueued_at)
  enter_state(id, from, to)
  redis.call('ZREM', P .. 'st:' .. agent .. ':' .. from, id)
  redis.call('ZADD', P .. 'st:' .. agent .. ':' .. to, enqueued_at, id)
  redis.call('HSET', run_key(id), 'state', to)
  redis.call('HINCRBY', run_key(id), 'version', 1)
end

-- Who asked for what, and why: append-only, one log per run.
local function audit(id, action, actor, reason, detail)
  redis.call('XADD', P .. 'a:' .. id, '*', 'action', action, 'actor', actor, 'reason', reason, 'detail', detail or '')
end

-- Whether something of the run may have to be settled, undone or released; cleanup decides what its policy wants.
local function is_dirty(key)
  local f = redis.call('HMGET', key, 'fx_open', 'fx_unknown', 'fx_committed', 'resources', 'locks')
  for i = 1, 5 do
    if tonumber(f[i] or 0) > 0 then return true end
  end
  return false
end

-- Whether an outcome is unknown or a lock registered: no policy lets a run end with these.
local function is_unsettled(key)
  local f = redis.call('HMGET', key, 'fx_open', 'fx_unknown', 'locks')
  return tonumber(f[1] or 0) > 0 or tonumber(f[2] or 0) > 0 or tonumber(f[3] or 0) > 0
end

-- Whatever waits, sweeps or is held of a run is taken back before it moves.
local function detach(id, key)
  redis.call('ZREM', P .. 'due', id)
  redis.call('ZREM', P .. 'expires', id)
  redis.call('ZREM', P .. 'retain', id)
  redis.call('HDEL', P .. 'cancels', id)
  local f = redis.call('HMGET', key, 'agent', 'worker', 'suspect', 'enqueued_at')
  redis.call('ZREM', queue_key(f[1], f[3]), id)
  redis.call('ZREM', cleaning_key(f[1], '0'), id)
  redis.call('ZREM', cleaning_key(f[1], '1'), id)
  let_go(id, f[2])
  redis.call('HDEL', key, 'activity', 'worker', 'due_at')
  return f[1], f[4]
end

local function forget_cleaning(key)
  redis.call('HDEL', key, 'cl_cause', 'cl_target', 'cl_end', 'cl_code', 'cl_message', 'cl_undo', 'cl_at', 'cl_passes',
    'cl_deaths', 'cl_alone', 'cl_losses', 'cl_open', 'cl_suspect', 'cl_poison', 'cl_cancelled', 'cl_lost_at', 'cl_waited')
end

-- What a run left behind is settled, undone and released before it ends or begins anew. `target` is the state that
-- follows, `ends_as` the end when a next attempt cannot begin, `undo` none|policy|all.
local function begin_cleaning(id, from, now, cause, target, ends_as, code, message, undo)
  local key = run_key(id)
  local agent, enqueued_at = detach(id, key)
  local told = redis.call('HGET', key, 'cancel')
  forget_cleaning(key)
  redis.call('HDEL', key, 'suspect', 'ended_at', 'cannot_continue', 'cancel')
  -- Told to stop meanwhile: that is the verdict (invariant 18). A run that had ended before it heeded that keeps its end.
  if told and not TERMINAL[from] and ends_as ~= 'cancelled' then
    ends_as, code, message = 'cancelled', 'CANCELLED', 'The run was cancelled.'
    if target ~= 'requires_manual_review' then target = 'cancelled' end
    if undo == 'none' then undo = 'policy' end
    redis.call('HSET', key, 'cl_cancelled', 1)
  end
  redis.call('HSET', key, 'fence', 'cleaning:' .. now, 'continued', 0, 'cl_cause', cause, 'cl_target', target,
    'cl_end', ends_as, 'cl_code', code, 'cl_message', message, 'cl_undo', undo, 'cl_at', now,
    'cl_passes', 0, 'error_code', code, 'error_message', message)
  redis.call('HINCRBY', key, 'cl_round', 1)
  move(id, agent, from, 'cleaning', enqueued_at)
  redis.call('ZADD', cleaning_key(agent, '0'), now, id)
  redis.call('SET', P .. 'woken:' .. id, 1, 'PX', 5000) -- whoever brought it here announces it
end

-- Once per run, at its end or when it reaches a person: was a timed-out run cleaned up, did a retried one recover (I2)?
local function count_verdict(key, agent, outcome, timed_out, clean)
  if redis.call('HSETNX', key, 'verdict', outcome) == 0 then return end
  local f = redis.call('HMGET', key, 'attempt', 'crashes')
  if tonumber(f[1] or 0) > 1 or tonumber(f[2] or 0) > 0 then count('retried_runs_total|' .. agent .. '|' .. outcome) end
  if timed_out then count('timed_out_runs_total|' .. agent .. '|' .. (clean and 'yes' or 'no')) end
end

-- From the moment at which the run had to be cleaned up, over all passes.
local function measure_cleanup(key, agent, now)
  local began = tonumber(redis.call('HGET', key, 'cl_at') or now)
  observe('agent:' .. agent, 'cleanup_duration_seconds', math.max(0, now - began), BUCKETS.step)
end

-- Cleanup could not settle the run: a person decides. `items` is JSON: what is open, each with what is asked.
local function enter_review(id, code, message, items, now)
  local key = run_key(id)
  local agent, enqueued_at = detach(id, key)
  local ends_as = redis.call('HGET', key, 'cl_end')
  redis.call('HSET', key, 'fence', 'review:' .. now, 'rv_at', now, 'rv_code', code, 'rv_message', message, 'rv_items', items)
  measure_cleanup(key, agent, now)
  move(id, agent, 'cleaning', 'requires_manual_review', enqueued_at)
  count('reviews_total|' .. agent .. '|' .. code)
  count('cleanups_total|' .. agent .. '|' .. (redis.call('HGET', key, 'cl_cause') or '') .. '|failed')
  count_verdict(key, agent, 'requires_manual_review', ends_as == 'timed_out', false)
  return redis.call('HINCRBY', key, 'reviews', 1)
end

-- The answer to a claim: the whole record.
local function claimed(id, now)
  local reply = {1, id, now}
  local fields = redis.call('HGETALL', run_key(id))
  for i = 1, #fields do reply[3 + i] = fields[i] end
  return reply
end

-- What a claim with this nonce was answered before: nil when there was none, false when that claim holds no more.
local function claimed_before(nonce, now)
  local id = redis.call('GET', P .. 'claim:' .. nonce)
  if not id then return nil end
  local fence = redis.call('HGET', run_key(id), 'fence')
  return fence and string.sub(fence, -#nonce) == nonce and claimed(id, now)
end

-- A run has ended for the first time: what it took. One that never began has no duration.
local function count_finished(key, agent, outcome, now)
  local f = redis.call('HMGET', key, 'started_at', 'steps', 'calls', 'requests')
  local series = 'agent:' .. agent
  local steps, calls, requests = tonumber(f[2] or 0), tonumber(f[3] or 0), tonumber(f[4] or 0)
  count('runs_finished_total|' .. agent .. '|' .. outcome)
  if f[1] then observe(series, 'run_duration_seconds|' .. outcome, math.max(0, now - tonumber(f[1])), BUCKETS.run) end
  observe(series, 'run_steps', steps, BUCKETS.count)
  observe(series, 'run_calls|tool', calls, BUCKETS.count)
  observe(series, 'run_calls|model', requests, BUCKETS.count)
  count_hour('run_steps|' .. agent .. '|sum', steps)
  count_hour('run_calls|' .. agent .. '|tool|sum', calls)
  count_hour('run_calls|' .. agent .. '|model|sum', requests)
end

-- A message came, and nothing was due: the run that it names has ended, or somebody has it. A repetition counts nothing.
local function in_vain(nonce, hint)
  local f = hint ~= '' and redis.call('HMGET', run_key(hint), 'state', 'worker') or {}
  local decision = f[1] and ((TERMINAL[f[1]] or f[1] == 'requires_manual_review') and 'done' or f[2] and 'fenced')
  if decision then
    write_when_full()
    redis.call('SET', P .. 'claim:' .. nonce, '', 'PX', 60000)
    count('redeliveries_total|' .. decision)
  end
  return {NOTHING}
end

-- The first terminal transition of a run: indexes, effects verdict, counters. What frees memory comes first.
local function finish(id, from, to, code, message, now)
  local key = run_key(id)
  local agent, enqueued_at = detach(id, key)
  local f = redis.call('HMGET', key, 'fx_open', 'fx_unknown', 'counted', 'open_calls', 'crashes')
  local unknown = tonumber(f[2] or 0) + tonumber(f[1] or 0)
  if tonumber(f[4] or 0) > 0 or tonumber(f[5] or 0) > 0 then count_left(id) end
  forget_cleaning(key)
  move(id, agent, from, to, enqueued_at)
  -- Who was lost meanwhile must not bring the run back to cleaning by another end of it.
  redis.call('HSET', key, 'fence', 'ended:' .. now, 'ended_at', now, 'error_code', code, 'error_message', message,
    'fx_open', 0, 'fx_unknown', unknown, 'open_calls', 0, 'counted', 1)
  redis.call('ZADD', P .. 'retain', now, id)
  if not f[3] then count_finished(key, agent, to, now) end
  count_verdict(key, agent, to, to == 'timed_out', unknown == 0)
end
