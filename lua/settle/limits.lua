-- The time, and the limits and chains of the call.

local now = ARGV[1] + 0
if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
end
if now > TIME_MAX then
    now = TIME_MAX
end

-- A number as text. Redis' own conversion of numbers is slower.
local function to_text(number)
    return format('%.0f', number)
end

-- Microseconds as expiry of a key: milliseconds, as text.
local function expiry(micros)
    return to_text(math.ceil(math.min(micros, EXPIRY_MAX) / 1000))
end

-- Adds to the number that a key has. Returns the sum, or an error if the value is not a number.
local function increase(key, by)
    if by == 1 then
        return try('INCR', key)
    end
    return try('INCRBY', key, to_text(by))
end

-- The limits and chains, by position in ARGV.
local definitions = {}
local position, first_check = 3, ARGV[2] + 0

-- The chain at a position of ARGV. For each check: the limit, the hits, the start of the present window, and the
-- largest stored value with which the hits fit, as text. `is_comparable` is false if such a value has fewer or more
-- digits than the present time: then texts cannot be compared as numbers.
local function chain_at(at, length)
    local chain = { limits = {}, hits = {}, starts = {}, largest = {}, is_comparable = true }
    for index = 1, length do
        local number = ARGV[at + index] + 0
        local hits = number % 2 ^ 33
        local limit = definitions[(number - hits) / 2 ^ 33]
        local start = now - now % limit.window
        chain.limits[index] = limit
        chain.hits[index] = hits
        chain.starts[index] = start
        chain.largest[index] = to_text(start + limit.capacity - hits)
        chain.is_comparable = chain.is_comparable and #chain.largest[index] == DIGITS
    end
    return chain
end

while position < first_check do
    local number = ARGV[position] + 0
    local code = number % 8
    local rest = (number - code) / 8
    if code == CHAIN then
        definitions[position] = chain_at(position, rest)
        position = position + 1 + rest
    elseif code == 4 then
        definitions[position] = {
            algorithm = algorithms[code],
            capacity = rest,
            cost = ARGV[position + 1] + 0,
            refill_units = ARGV[position + 2] + 0,
            refill_interval = ARGV[position + 3] + 0,
        }
        position = position + 4
    else
        -- The cost for GCRA, the window for the others.
        local span = ARGV[position + 1] + 0
        definitions[position] =
            { algorithm = algorithms[code], capacity = rest, window = span, cost = span }
        position = position + 2
    end
end
