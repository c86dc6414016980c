-- What can be a stored state. Anything else under a counter's name was not written by these scripts: it
-- counts as absent.

-- The last point in time that can be told.
local TIME_MAX = 2 ^ 52 - 1

-- Digits of the largest integer below 2^53.
local DIGITS_MAX = 16

-- The integer that a text is, if it is one below 2^53 as these scripts write it.
local function integer(text)
    if text and #text <= DIGITS_MAX and (text == '0' or string.find(text, '^[1-9]%d*$')) then
        local number = tonumber(text)
        return number < 2 ^ 53 and number or nil
    end
end

-- Such integers, as many as a pattern has captured.
local function integers(first, second, third)
    first, second = integer(first), integer(second)
    if first and second and (not third or integer(third)) then
        return first, second, integer(third)
    end
end
