-- Queued runs that nobody claims: candidates for a new wake-up message (invariant 12).
-- KEYS: 1 prefix of the shard
-- ARGV: quiet time in ms (since the last claim of the agent, and since a run was queued), how many at the most,
--       quarantine (1: suspects only), agents served (list)
-- RETURNS: {now_ms, run ids…}; of each agent nothing while another worker looked for its runs within the quiet time
-- EVENTS: none
local quiet, limit, quarantine = take_n(), take_n(), take()
local n_agents, agents = take_list(1)
local now = now_ms()
local reply = {now}
-- Each agent for itself: workers that serve others must not keep its runs waiting.
for i = 1, n_agents do
  local agent = ARGV[agents + i]
  local name = quarantine .. ':' .. agent
  local claimed = redis.call('HGET', P .. 'claimed', name)
  if not claimed or now - tonumber(claimed) >= quiet then
    local ids = redis.call('ZRANGEBYSCORE', queue_key(agent, quarantine), '-inf', now - quiet, 'LIMIT', 0, limit)
    if #ids > 0 and redis.call('SET', P .. 'sweep:' .. name, 1, 'NX', 'PX', quiet) then
      for _, id in ipairs(ids) do reply[#reply + 1] = id end
    end
  end
end
return reply
