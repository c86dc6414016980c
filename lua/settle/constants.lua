-- Constants of the script, and local names of functions, which are faster than global ones.

local call, try, format, type = redis.call, redis.pcall, string.format, type
local KEYS, ARGV = KEYS, ARGV

-- The longest expiry of a key, in microseconds.
local EXPIRY_MAX = 2 ^ 53 - 1

-- Hits of a fixed window from which the long reply is used.
local SHORT_MAX = 2 ^ 50

-- Digits of the present time in microseconds since the Unix epoch.
local DIGITS = 16

-- The most keys read at once. Lua's stack bounds unpack.
local READ_MAX = 4000

-- Kinds of charges, and codes of chains and groups in ARGV.
local IF_ALLOWED_ONE, IF_ALLOWED, ALWAYS, REFUND = 0, 1, 2, 3
local CHAIN, GROUPS = 6, 7
