-- Sliding window counter: estimates the hits in the window up to now from the counts of two aligned
-- windows, as if those of the previous one had arrived evenly.
--
-- A state has the number of the current `window` since the Unix epoch and the hits charged in the
-- `previous` window and in the `current` one. It is stored as `window:previous:current`. If both
-- counts are below the square root of the window's microseconds, it is stored as one number with these three
-- digits in that base. That number is below the end of the window in microseconds, and so exact; Redis
-- stores it compactly.

-- The most hits that a window counts: above any limit, and small enough that mul_div stays below 2^53 at
-- every step.
local COUNT_MAX = 2 ^ 32

local function window_end(state, limit)
    return (state.window + 1) * limit.window
end

-- Hits of the previous window that still count: its hits times the part of it that the window up to now
-- overlaps, rounded up.
local function weighted_previous(state, limit, now)
    return mul_div_ceil(state.previous, window_end(state, limit) - now, limit.window)
end

-- The base of a packed state.
local function base_of(limit)
    return math.floor(math.sqrt(limit.window))
end

sliding_window_counter = {
    advance = function(state, limit, now)
        local length = limit.window
        local window = (now - now % length) / length
        if window > state.window then
            state.previous = window - state.window == 1 and state.current or 0
            state.current = 0
            state.window = window
        end
        local start = state.window * length
        return now > start and now or start
    end,

    available = function(state, limit, now)
        return limit.capacity - (state.current + weighted_previous(state, limit, now))
    end,

    charge = function(state, _, _, hits)
        local current = state.current + hits
        state.current = current < COUNT_MAX and current or COUNT_MAX
        return state.window, 0
    end,

    refund = function(state, _, _, hits, at)
        local previous, current = 0, 0
        if not at then
            previous = hits < state.previous and hits or state.previous
            current = hits - previous
        elseif at == state.window then
            current = hits
        elseif at + 1 == state.window then
            previous = hits < state.previous and hits or state.previous
        end
        current = current < state.current and current or state.current
        state.previous = state.previous - previous
        state.current = state.current - current
        return previous + current > 0
    end,

    retry_after = function(state, limit, now, hits)
        local length = limit.window
        local room = limit.capacity - hits
        local at
        if state.current > room then
            at = window_end(state, limit) + length - mul_div(length, room, state.current)
        elseif state.current + weighted_previous(state, limit, now) > room then
            at = window_end(state, limit) - mul_div(length, room - state.current, state.previous)
        else
            return 0
        end
        return at > now and at - now or 0
    end,

    expires_after = function(state, limit, now)
        if state.current > 0 then
            return window_end(state, limit) + limit.window - now
        end
        return state.previous > 0 and window_end(state, limit) - now or 0
    end,

    read = function(value, limit)
        if not value then
            return { window = 0, previous = 0, current = 0 }
        end
        local number = integer(value)
        local window, previous, current
        if number then
            local base = base_of(limit)
            current = number % base
            local rest = (number - current) / base
            previous = rest % base
            window = (rest - previous) / base
        else
            window, previous, current = integers(string.match(value, '^(%d+):(%d+):(%d+)$'))
        end
        local counts = window and math.max(previous, current) <= COUNT_MAX
        if counts and window * limit.window <= TIME_MAX then
            return { window = window, previous = previous, current = current }
        end
    end,

    write = function(state, limit)
        local base = base_of(limit)
        if state.previous < base and state.current < base then
            return string.format('%.0f', (state.window * base + state.previous) * base + state.current)
        end
        return string.format('%.0f:%.0f:%.0f', state.window, state.previous, state.current)
    end,
}
