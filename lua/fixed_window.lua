-- Fixed window: counts hits in windows aligned to the Unix epoch, whatever their length.
--
-- A state has the number of the `window` since the Unix epoch and the hits `used` in it. It is stored as one
-- number, the start of the window in microseconds plus the hits, which Redis stores compactly and INCRBY
-- changes. If there are as many hits as microseconds in the window, or more, it is stored as `window:used`.
-- `stored` is the number that was read.

-- Microseconds until the window ends.
local function until_window_end(state, limit, now)
    return (state.window + 1) * limit.window - now
end

fixed_window = {
    advance = function(state, limit, now)
        local length = limit.window
        local window = (now - now % length) / length
        if window > state.window then
            state.window = window
            state.used = 0
        end
        local start = state.window * length
        return now > start and now or start
    end,

    available = function(state, limit)
        return limit.capacity - state.used
    end,

    charge = function(state, _, _, hits)
        local used = state.used + hits
        state.used = used < 2 ^ 53 and used or 2 ^ 53 - 1
        return state.window, 0
    end,

    refund = function(state, _, _, hits, at)
        if at and at ~= state.window then
            return false
        end
        local refunded = hits < state.used and hits or state.used
        state.used = state.used - refunded
        return refunded > 0
    end,

    retry_after = function(state, limit, now, hits)
        return state.used + hits <= limit.capacity and 0 or until_window_end(state, limit, now)
    end,

    expires_after = function(state, limit, now)
        return state.used == 0 and 0 or until_window_end(state, limit, now)
    end,

    -- The end of the window, even if it is unused, because clients align with the windows of the clock.
    reset_after = until_window_end,

    read = function(value, limit)
        if not value then
            return { window = 0, used = 0, stored = false }
        end
        local length = limit.window
        local number = integer(value)
        local window, used
        if number then
            used = number % length
            window = (number - used) / length
        else
            window, used = integers(string.match(value, '^(%d+):(%d+)$'))
        end
        if window and window * length <= TIME_MAX then
            return { window = window, used = used, stored = number or false }
        end
    end,

    -- The value to store. If the stored number is of the same window, returns nil and the difference to it.
    write = function(state, limit)
        if state.used >= limit.window then
            return string.format('%.0f:%.0f', state.window, state.used)
        end
        local start, stored = state.window * limit.window, state.stored
        if stored and stored > start then
            return nil, start + state.used - stored
        end
        return string.format('%.0f', start + state.used)
    end,
}
