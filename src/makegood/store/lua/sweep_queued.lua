-- Queued runs that nobody claims: candidates for a new wake-up message (DESIGN invariant 12).
-- KEYS: 1 prefix of the shard
-- ARGV: quiet time in ms (since the last claim of a suspect or of another, and since a run was queued), how many at the most,
--       quarantine (1: suspects only), agents served (list)
-- RETURNS: {now_ms, run ids…}; nothing while another worker looked for such runs of this shard within the quiet time
-- EVENTS: none
local quiet, limit, quarantine = take_n(), take_n(), take()
local n_agents, agents = take_list(1)
local now = now_ms()
local reply = {now}
local claimed = redis.call('GET', P .. 'claimed_at:' .. quarantine)
if claimed and now - tonumber(claimed) < quiet then return reply end
if not redis.call('SET', P .. 'sweep:queued:' .. quarantine, 1, 'NX', 'PX', quiet) then return reply end
for i = 1, n_agents do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue_key(ARGV[agents + i], quarantine), '-inf', now - quiet, 'LIMIT', 0, limit)) do
    reply[#reply + 1] = id
  end
end
return reply
