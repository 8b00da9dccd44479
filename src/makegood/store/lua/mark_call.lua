-- A person says what became of a call of a run in review. An unknown one happened (done) or did not (undone); the effect of
-- one that succeeded may stay (done: no cleanup undoes it any more) or was undone by hand (undone).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, row id, call key, tool, mark (done|undone), outcome of an unknown call (JSON), actor, reason,
--       expected version ('' = not checked), what stands in the audit log (JSON), what the event says when the call was
--       unknown, and when it had succeeded (JSON)
-- RETURNS: {1, answer `succeeded|version`, `failed|…`, `undone|…` or `kept|…`} | {NOT_FOUND} | {OLD_VERSION, expected, current}
--          | {BAD_STATE, state} | {BAD_STATE, state, status of the call, status of its undo} there is nothing to mark
-- EVENTS: cleanup.settled or cleanup.compensated
local id, op, row, call_key, tool, mark, outcome = take(), take(), take(), take(), take(), take(), take()
local actor, reason, expected, detail, says_settled, says_stood = take(), take(), take(), take(), take(), take()
local key, journal = run_key(id), P .. 'j:' .. id

local f = redis.call('HMGET', key, 'state', 'version', 'decision_op', 'decision_answer', 'attempt', 'cl_round')
local state, version = f[1], tonumber(f[2] or 0)
if not state then return {NOT_FOUND} end
if f[3] == op then return {1, f[4]} end
if expected ~= '' and tonumber(expected) ~= version then return {OLD_VERSION, expected, version} end
if state ~= 'requires_manual_review' then return {BAD_STATE, state} end

local call, undo = redis.call('HGET', journal, row .. '.s'), redis.call('HGET', journal, row .. '.u')
if not call then return {BAD_STATE, state, '', ''} end
local was, began, _, _, tries = string.match(call, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
local undoing, undo_began, undo_tries, round = '', nil, 0, f[6] or 0
if undo then
  undoing, undo_began, _, _, undo_tries, round = string.match(undo, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
end
local open = was == 'unknown' or was == 'started'
if undoing == 'succeeded' or (not open and was ~= 'succeeded') or (mark == 'done' and not open and undoing == 'kept') then
  return {BAD_STATE, state, was, undoing}
end

local now = now_ms()
local became
if open then
  became = mark == 'done' and 'succeeded' or 'failed'
  if was == 'started' then
    tries = plus(tries, 1) -- the one that was under way
    redis.call('HINCRBY', key, 'open_calls', -1)
  end
  redis.call('HSET', journal, row .. '.s', table.concat({became, began, now, op, tries}, '|'), row .. '.o', outcome)
  redis.call('HINCRBY', key, was == 'unknown' and 'fx_unknown' or 'fx_open', -1)
  if mark == 'done' then redis.call('HINCRBY', key, 'fx_committed', 1) end
  count('unknown_outcomes_total|' .. tool .. '|' .. (mark == 'done' and 'happened' or 'not_happened'))
else
  became = mark == 'done' and 'kept' or 'undone'
  local status = mark == 'done' and 'kept' or 'succeeded'
  redis.call('HSET', journal, row .. '.u', table.concat({status, undo_began or now, now, op, undo_tries, round}, '|'))
  if mark == 'undone' then
    redis.call('HINCRBY', key, 'fx_committed', -1)
    redis.call('HINCRBY', key, 'fx_compensated', 1)
  end
end
local kind = became == 'undone' and 'cleanup.compensated' or 'cleanup.settled'
emit(id, f[5] or 0, kind, '', call_key, open and says_settled or says_stood)
audit(id, 'mark', actor, reason, detail)
count('operator_actions_total|mark|done')
local answer = became .. '|' .. redis.call('HINCRBY', key, 'version', 1)
redis.call('HSET', key, 'decision_op', op, 'decision_answer', answer)
return {1, answer}
