-- STANDALONE
-- How a try ended. Twin of tasks/rules/breaker.py `on_failure`, `on_success`, `on_neutral`; tested on one table.
-- KEYS: 1 hash of all breakers, 2 the answer to this try's report, kept for 15 minutes: a repeat counts nothing twice,
--       3 their counters
-- ARGV: name, owner of the try, outcome (failure|success|neutral), failures that open, window ms, open for ms,
--       now in ms ('' = server time; given by tests only)
-- RETURNS: {packed state before, packed state after, now_ms}
-- EVENTS: none
local name, owner, outcome = ARGV[1], ARGV[2], ARGV[3]
local threshold, window, open_for = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = tonumber(ARGV[7])
if not now then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local told = redis.call('GET', KEYS[2])
if told then
  local first, second, at = string.match(told, '^([^\n]*)\n([^\n]*)\n(.*)$')
  return {first, second, tonumber(at)}
end
local before = redis.call('HGET', KEYS[1], name) or 'closed||0|0||0|0'
local state, failures, opened, open_until, probe_owner, probe_until, held =
  string.match(before, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
local is_probe = state == 'half_open' and owner ~= '' and probe_owner == owner
local after = before

if outcome == 'failure' and state == 'closed' then
  local recent = {}
  for at in string.gmatch(failures, '[^,]+') do
    if tonumber(at) >= now - window then recent[#recent + 1] = at end
  end
  recent[#recent + 1] = string.format('%.0f', now)
  while #recent > threshold do table.remove(recent, 1) end
  if #recent < threshold then
    after = table.concat({'closed', table.concat(recent, ','), opened, open_until, probe_owner, probe_until, held}, '|')
  else
    after = table.concat({'open', '', now, now + open_for, '', 0, 0}, '|')
  end
elseif outcome == 'failure' and is_probe then
  after = table.concat({'open', '', now, now + open_for, '', 0, 0}, '|')
elseif outcome == 'success' and (state == 'closed' or is_probe) then
  after = 'closed||0|0||0|0'
elseif outcome == 'neutral' and is_probe then
  after = table.concat({state, failures, opened, open_until, '', 0, held}, '|')
end
if after ~= before then
  redis.call('HSET', KEYS[1], name, after)
  local became = string.match(after, '^[^|]*')
  if became ~= state then redis.call('HINCRBY', KEYS[3], 'breaker_transitions_total|' .. name .. '|' .. became, 1) end
end
redis.call('SET', KEYS[2], before .. '\n' .. after .. '\n' .. now, 'PX', 900000)
return {before, after, now}
