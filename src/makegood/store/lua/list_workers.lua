-- STANDALONE
-- The worker processes that are alive.
-- KEYS: 1 sorted set: worker → until when it counts as alive, 2 hash: worker → what it said
-- ARGV: none
-- RETURNS: worker, facts (JSON), worker, facts …
-- EVENTS: none
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local reply = {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
  local facts = redis.call('HGET', KEYS[2], worker)
  if facts then
    reply[#reply + 1] = worker
    reply[#reply + 1] = facts
  end
end
return reply
