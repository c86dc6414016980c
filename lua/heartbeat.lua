-- Records the heartbeat of a replica, and returns the number of live replicas.
--
-- KEYS[1]  sorted set of the live replicas; the score is the expiry in ms since the Unix epoch
-- ARGV[1]  name of the replica
-- ARGV[2]  lifetime of the heartbeat in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
