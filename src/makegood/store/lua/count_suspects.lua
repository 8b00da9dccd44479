-- How many suspects of this shard, runs and cleanups, wait for a quarantine process.
-- KEYS: 1 prefix of the shard
-- ARGV: agents served (list)
-- RETURNS: the number
-- EVENTS: none
local n_agents, agents = take_list(1)
local n = 0
for i = 1, n_agents do
  n = n + redis.call('ZCARD', queue_key(ARGV[agents + i], '1')) + redis.call('ZCARD', cleaning_key(ARGV[agents + i], '1'))
end
return n
