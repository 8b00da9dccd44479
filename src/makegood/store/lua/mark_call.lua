-- A person says what became of a call of a run in review. An unknown one happened (done) or did not (undone). The effect of
-- one that succeeded, or whose undo was begun, may stay (done: no cleanup undoes it any more) or was undone by hand (undone:
-- its generation is over, so that a later attempt makes the call under a new key).
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, row id, call key, tool, mark (done|undone), outcome of an unknown call (JSON), actor, reason,
--       expected version ('' = not checked), what stands in the audit log (JSON), what the event says when an unknown call is
--       settled, and when it is said what became of an effect (JSON)
-- RETURNS: {1, answer `succeeded|version`, `failed|…`, `undone|…` or `kept|…`} | {NOT_FOUND} | {OLD_VERSION, expected, current}
--          | {BAD_STATE, state} | {BAD_STATE, state, status of the call, status of its undo} there is nothing to mark
-- EVENTS: cleanup.settled or cleanup.compensated
local id, op, row, call_key, tool, mark, outcome = take(), take(), take(), take(), take(), take(), take()
local actor, reason, expected, detail, says_settled, says_effect = take(), take(), take(), take(), take(), take()
local key, journal = run_key(id), P .. 'j:' .. id

local known = redis.call('GET', P .. 'd:' .. id .. ':' .. op)
if known then return {1, known} end
local f = redis.call('HMGET', key, 'state', 'version', 'attempt', 'cl_round')
local state, version = f[1], tonumber(f[2] or 0)
if not state then return {NOT_FOUND} end
if expected ~= '' and tonumber(expected) ~= version then return {OLD_VERSION, expected, version} end
if state ~= 'requires_manual_review' then return {BAD_STATE, state} end

local call, undo = redis.call('HGET', journal, row .. '.s'), redis.call('HGET', journal, row .. '.u')
if not call then return {BAD_STATE, state, '', ''} end
local was, began, _, _, tries = string.match(call, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
local undoing, undo_began, undo_tries, round = '', nil, 0, f[4] or 0
if undo then
  undoing, undo_began, _, _, undo_tries, round = string.match(undo, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
end
local open = was == 'unknown' or was == 'started'
local half_undone = undoing == 'started' or undoing == 'failed' or undoing == 'unknown'
-- A call may have been found without effect while its undo was in doubt: then it can have been undone, and nothing may stay.
local fits = open or was == 'succeeded' or (half_undone and mark == 'undone')
if not fits or undoing == 'succeeded' or (undoing == 'kept' and mark == 'done') then return {BAD_STATE, state, was, undoing} end

local now = now_ms()
local settles = open and not half_undone
local became
if settles then
  became = mark == 'done' and 'succeeded' or 'failed'
else
  became = mark == 'done' and 'kept' or 'undone'
end
if open and became ~= 'undone' then
  if was == 'started' then tries = plus(tries, 1) end -- the one that was under way
  local status = mark == 'done' and 'succeeded' or 'failed'
  redis.call('HSET', journal, row .. '.s', table.concat({status, began, now, op, tries}, '|'), row .. '.o', outcome)
end
if not settles then
  local status = mark == 'done' and 'kept' or 'succeeded'
  redis.call('HSET', journal, row .. '.u', table.concat({status, undo_began or now, now, op, undo_tries, round}, '|'))
  if half_undone then redis.call('HINCRBY', key, 'undo_open', -1) end
end

local from = was == 'succeeded' and 'fx_committed' or was == 'unknown' and 'fx_unknown' or was == 'started' and 'fx_open'
local to = became == 'undone' and 'fx_compensated' or became ~= 'failed' and 'fx_committed'
if from then redis.call('HINCRBY', key, from, -1) end
if to then redis.call('HINCRBY', key, to, 1) end
if was == 'started' then redis.call('HINCRBY', key, 'open_calls', -1) end
if open then
  local how = mark == 'done' and 'happened' or settles and 'not_happened' or 'compensated'
  count_settled(id, row, tool, was, how)
end
local kind = became == 'undone' and 'cleanup.compensated' or 'cleanup.settled'
emit(id, f[3] or 0, kind, '', call_key, settles and says_settled or says_effect)
audit(id, 'mark', actor, reason, detail)
count('operator_actions_total|mark|done')
local answer = became .. '|' .. redis.call('HINCRBY', key, 'version', 1)
redis.call('SET', P .. 'd:' .. id .. ':' .. op, answer, 'PX', 900000)
return {1, answer}
