-- An operator asks for the cleanup of a run that has ended: what is unknown is settled, and whatever can be undone is undone.
-- The run keeps its end; a run that succeeded is undone only when the operator says so.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, op, also when it succeeded (0|1), actor, reason, expected version ('' = not checked)
-- RETURNS: {1, answer} | {NOT_FOUND} | {OLD_VERSION, expected, current}; the answer is `result|state before|version` with the
--          result requested, nothing_to_do, already_cleaning or refused
-- EVENTS: none
local id, op, undo_succeeded, actor, reason, expected = take(), take(), take(), take(), take(), take()
local key = run_key(id)

local known = redis.call('GET', P .. 'd:' .. id .. ':' .. op)
if known then return {1, known} end
local f = redis.call('HMGET', key, 'state', 'version', 'error_code', 'error_message')
local state, version = f[1], tonumber(f[2] or 0)
if not state then return {NOT_FOUND} end
if expected ~= '' and tonumber(expected) ~= version then return {OLD_VERSION, expected, version} end
if state == 'cleaning' then return {1, 'already_cleaning|' .. state .. '|' .. version} end

local refused = not TERMINAL[state] or state == 'resolved' or (state == 'succeeded' and undo_succeeded ~= '1')
if not refused and not is_dirty(key) then return {1, 'nothing_to_do|' .. state .. '|' .. version} end

local answer = 'refused|' .. state .. '|' .. version
if not refused then
  local ends_as = ALLOWED['cleaning>' .. state] and state or 'failed'
  begin_cleaning(id, state, now_ms(), 'manual', ends_as, ends_as, f[3] or '', f[4] or '', 'all')
  audit(id, 'cleanup', actor, reason, '{"state":"' .. state .. '"}')
  answer = 'requested|' .. state .. '|' .. redis.call('HGET', key, 'version')
end
count('operator_actions_total|cleanup|' .. (refused and 'refused' or 'done'))
redis.call('SET', P .. 'd:' .. id .. ':' .. op, answer, 'PX', 900000)
return {1, answer}
