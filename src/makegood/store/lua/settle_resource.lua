-- What became of rolling back a declared resource. Tries count per round.
-- KEYS: 1 prefix of the shard
-- ARGV: run_id, fence, op, resource key, status (rolled_back|failed), round, detail (JSON, '' = none), events (list)
-- RETURNS: {1, tries in this round, status} | {NOT_FOUND} | {STALE_FENCE} | {BAD_STATE, state}
-- EVENTS: those handed in (cleanup.rolled_back, cleanup.failed)
local id, fence, op, resource, status, round, detail = take(), take(), take(), take(), take(), take_n(), take()
local n_events, events = take_list(6)
local key, declared = run_key(id), P .. 'r:' .. id

local f = redis.call('HMGET', key, 'fence', 'state', 'attempt', 'resources')
if not f[1] then return {NOT_FOUND} end
if f[1] ~= fence then return {STALE_FENCE} end
if f[2] ~= 'cleaning' then return {BAD_STATE, f[2]} end
local line = redis.call('HGET', declared, resource .. '.s')
if not line then return {NOT_FOUND} end
local was, last_op, tries, last_round, seq, since =
  string.match(line, '^([^|]*)|[^|]*|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
tries = tonumber(tries)
local over = was ~= 'declared' and was ~= 'failed'
if last_op == op or over or is_known(id, op) then return {1, tries, was} end

local now = now_ms()
write_when_full()
remember(id, op, now)
if tonumber(last_round) ~= round then tries = 0 end
redis.call('HSET', declared, resource .. '.s', table.concat({status, now, op, tries + 1, round, seq, since}, '|'))
if detail == '' then
  redis.call('HDEL', declared, resource .. '.v')
else
  redis.call('HSET', declared, resource .. '.v', detail)
end
if status == 'rolled_back' then redis.call('HSET', key, 'resources', plus(f[4], -1)) end
emit_all(id, f[3], n_events, events)
return {1, tries + 1, status}
