-- Parsing of stored states. Any other value under a counter's key was not written by these scripts and
-- counts as absent.

-- The last time that can be represented.
local TIME_MAX = 2 ^ 52 - 1

-- Digits of the largest integer below 2^53.
local DIGITS_MAX = 16

-- The integer of a text, if it is below 2^53 and written as by these scripts.
local function integer(text)
    if text and #text <= DIGITS_MAX and (text == '0' or string.find(text, '^[1-9]%d*$')) then
        local number = tonumber(text)
        return number < 2 ^ 53 and number or nil
    end
end

-- Two or three such integers.
local function integers(first, second, third)
    first, second = integer(first), integer(second)
    if first and second and (not third or integer(third)) then
        return first, second, integer(third)
    end
end
