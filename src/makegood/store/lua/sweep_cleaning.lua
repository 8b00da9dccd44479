-- Cleanups that are due and that nobody claims: candidates for a wake-up, each at most once in five seconds.
-- KEYS: 1 prefix of the shard
-- ARGV: how many at the most, alone (1: suspects only), agents served (list)
-- RETURNS: {now_ms, run ids…}
-- EVENTS: none
local limit, alone = take_n(), take()
local n_agents, agents = take_list(1)
local now = now_ms()
local reply = {now}
for i = 1, n_agents do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', cleaning_key(ARGV[agents + i], alone), '-inf', now, 'LIMIT', 0, limit)) do
    if redis.call('SET', P .. 'woken:' .. id, 1, 'NX', 'PX', 5000) then reply[#reply + 1] = id end
  end
end
return reply
