-- How many suspects of this shard wait for a quarantine process.
-- KEYS: 1 prefix of the shard
-- ARGV: none
-- RETURNS: the number
-- EVENTS: none
local n = 0
for _, agent in ipairs(redis.call('SMEMBERS', P .. 'agents')) do
  n = n + redis.call('ZCARD', queue_key(agent, '1'))
end
return n
