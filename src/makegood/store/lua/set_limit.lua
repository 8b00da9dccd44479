-- STANDALONE
-- An operator sets a limit, or takes back what was set; workers read all of them once a second.
-- KEYS: 1 hash of what is set, 2 audit stream of the limits, 3 the answer, kept for 15 minutes: a repeat does nothing twice,
--       4 the counters
-- ARGV: level|name, seconds ('' = take back what was set), actor, reason
-- RETURNS: what was set before ('' = nothing)
-- EVENTS: none
local told = redis.call('GET', KEYS[3])
if told then return told end
local before = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('XADD', KEYS[2], '*', 'limit', ARGV[1], 'from', before, 'to', ARGV[2], 'actor', ARGV[3], 'reason', ARGV[4])
redis.call('HINCRBY', KEYS[4], 'operator_actions_total|timeout_set|done', 1)
redis.call('SET', KEYS[3], before, 'PX', 900000)
return before
