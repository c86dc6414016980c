-- Parsing of stored states. An invalid value was not written by these scripts; its counter is treated as unused.

-- The last time that can be represented, in microseconds since the Unix epoch.
local TIME_MAX = 2 ^ 52 - 1

-- Digits of the largest integer below 2^53.
local DIGITS_MAX = 16

-- The integer that a text has, if it is below 2^53 and has no leading zeros; else nil.
local function integer(text)
    if text and #text <= DIGITS_MAX and (text == '0' or string.find(text, '^[1-9]%d*$')) then
        local number = tonumber(text)
        return number < 2 ^ 53 and number or nil
    end
end

-- Two or three such integers; nil if one of them is not.
local function integers(first, second, third)
    first, second = integer(first), integer(second)
    if first and second and (not third or integer(third)) then
        return first, second, integer(third)
    end
end
