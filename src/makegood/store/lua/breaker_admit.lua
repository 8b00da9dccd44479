-- STANDALONE
-- May this try run? Twin of tasks/rules/breaker.py `admit`; both are tested on one table.
-- KEYS: 1 hash of all breakers: name → state|failures|opened|open until|probe owner|probe until|held, 2 their counters
-- ARGV: name, owner of the try, lease of a probe in ms, now in ms ('' = server time; given by tests only)
-- RETURNS: {answer, until_ms, packed state, now_ms}; answer 0 admitted, 1 admitted as the probe, 2 rejected (until 0: held)
-- EVENTS: none
local name, owner, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = tonumber(ARGV[4])
if not now then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local packed = redis.call('HGET', KEYS[1], name)
if not packed then return {0, 0, '', now} end
local state, failures, opened, open_until, probe_owner, probe_until, held =
  string.match(packed, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
open_until, probe_until = tonumber(open_until), tonumber(probe_until)
if state == 'closed' then return {0, 0, packed, now} end
if held == '1' then return {2, 0, packed, now} end
if state == 'open' and now < open_until then return {2, open_until, packed, now} end
if state == 'half_open' and probe_owner ~= '' and now < probe_until then
  if probe_owner == owner then return {1, 0, packed, now} end
  return {2, probe_until, packed, now}
end
if state == 'open' then redis.call('HINCRBY', KEYS[2], 'breaker_transitions_total|' .. name .. '|half_open', 1) end
packed = table.concat({'half_open', failures, opened, open_until, owner, now + lease, held}, '|')
redis.call('HSET', KEYS[1], name, packed)
return {1, 0, packed, now}
