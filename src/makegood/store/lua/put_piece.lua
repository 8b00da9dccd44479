-- STANDALONE
-- One piece of a large body, written ahead of the record that refers to it (which then makes it persist).
-- KEYS: 1 hash of the body
-- ARGV: number of the piece, bytes, seconds to live while nothing refers to it
-- RETURNS: 1
-- EVENTS: none
local fresh = redis.call('EXISTS', KEYS[1]) == 0
local lives = fresh or redis.call('TTL', KEYS[1]) >= 0
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if lives then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
