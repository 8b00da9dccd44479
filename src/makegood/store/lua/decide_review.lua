-- A person decides about a run in review: its cleanup is tried again (retry), it begins a new attempt (resume), or it ends as it
-- stands (resolve). A retry takes a new round, in which tries count anew. An attempt begins only when nothing is unknown, and no
-- effect half undone: the attempt would go on as if it stood.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, action (retry|resume|resolve), actor, reason, expected version ('' = not checked)
-- RETURNS: {1, answer `state|version`} | {NOT_FOUND} | {BAD_STATE, state} | {UNSETTLED} | {OLD_VERSION, expected, current}
-- EVENTS: review.resolved, then run.ended when it is resolved
local id, op, action, actor, reason, expected = take(), take(), take(), take(), take(), take()
local key = run_key(id)

local known = redis.call('GET', P .. 'd:' .. id .. ':' .. op)
if known then return {1, known} end
local f = redis.call('HMGET', key, 'state', 'version', 'attempt', 'cl_target', 'cl_end', 'cl_code', 'cl_message',
  'undo_open')
local state, version, attempt = f[1], tonumber(f[2] or 0), f[3] or 0
if not state then return {NOT_FOUND} end
if expected ~= '' and tonumber(expected) ~= version then return {OLD_VERSION, expected, version} end
if state ~= 'requires_manual_review' then return {BAD_STATE, state} end
if action == 'resume' and (is_unsettled(key) or tonumber(f[8] or 0) > 0) then return {UNSETTLED} end

local now = now_ms()
emit(id, attempt, 'review.resolved', '', '', '{"action":"' .. action .. '"}')
if action == 'resolve' then
  finish(id, state, 'resolved', f[6] or '', f[7] or '', now)
  emit(id, attempt, 'run.ended', '', '', end_text('resolved', f[6] or ''))
else
  local agent, enqueued_at = detach(id, key)
  if action == 'retry' then
    local target = f[4] ~= 'requires_manual_review' and f[4] or f[5] or 'failed'
    redis.call('HSET', key, 'fence', 'cleaning:' .. now, 'cl_target', target, 'cl_at', now, 'cl_passes', 0)
    redis.call('HDEL', key, 'cl_deaths', 'cl_alone', 'cl_losses', 'cl_suspect', 'cl_poison', 'cl_open', 'cl_waited')
    redis.call('HINCRBY', key, 'cl_round', 1)
    move(id, agent, state, 'cleaning', enqueued_at)
    redis.call('ZADD', cleaning_key(agent, '0'), now, id)
    redis.call('SET', P .. 'woken:' .. id, 1, 'PX', 5000) -- who decided announces it
  else
    forget_cleaning(key)
    -- The deaths that brought it here are forgiven: a person says that their cause is gone.
    redis.call('HDEL', key, 'error_code', 'error_message', 'rv_at', 'rv_code', 'rv_message', 'rv_items', 'rv_told', 'suspect',
      'process_deaths', 'quarantine_deaths', 'alone_after', 'cannot_continue', 'lost_at', 'silent_at')
    redis.call('HSET', key, 'fence', 'resumed:' .. now, 'continued', 0, 'output', '', 'resumed_at', now)
    move(id, agent, state, 'queued', enqueued_at)
    redis.call('ZADD', queue_key(agent), now, id)
  end
end
audit(id, action, actor, reason)
count('operator_actions_total|' .. action .. '|done')
count('reviews_resolved_total|' .. redis.call('HGET', key, 'agent') .. '|' .. action)
local answer = redis.call('HGET', key, 'state') .. '|' .. redis.call('HGET', key, 'version')
redis.call('SET', P .. 'd:' .. id .. ':' .. op, answer, 'PX', 900000)
return {1, answer}
