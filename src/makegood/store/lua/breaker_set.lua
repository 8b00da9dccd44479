-- STANDALONE
-- An operator opens or closes a breaker; opened by hand it stays open until closed by hand.
-- KEYS: 1 hash of all breakers, 2 audit stream of the breakers, 3 the answer, kept for 15 minutes: a repeat does nothing twice,
--       4 their counters
-- ARGV: name, action (open|close), actor, reason
-- RETURNS: packed state
-- EVENTS: none
local told = redis.call('GET', KEYS[3])
if told then return told end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local packed = 'closed||0|0||0|0'
if ARGV[2] == 'open' then packed = table.concat({'open', '', now, 0, '', 0, 1}, '|') end
local was = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or 'closed', '^[^|]*')
local became = string.match(packed, '^[^|]*')
if became ~= was then redis.call('HINCRBY', KEYS[4], 'breaker_transitions_total|' .. ARGV[1] .. '|' .. became, 1) end
redis.call('HINCRBY', KEYS[4], 'operator_actions_total|breaker_' .. ARGV[2] .. '|done', 1)
redis.call('HSET', KEYS[1], ARGV[1], packed)
redis.call('XADD', KEYS[2], '*', 'action', 'breaker_' .. ARGV[2], 'name', ARGV[1], 'actor', ARGV[3], 'reason', ARGV[4])
redis.call('SET', KEYS[3], packed, 'PX', 900000)
return packed
