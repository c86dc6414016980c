-- Generic cell rate algorithm: a token bucket stored as a single time, the theoretical arrival time
-- (TAT) of the next hit if hits arrived evenly spaced.
--
-- A state has the `tat` in microseconds since the Unix epoch, and is stored as that number. A product of hits
-- and cost above 2^53 may be inexact. That is harmless, because it is capped at a bound below 2^53.

-- The largest distance of the TAT from the present, in microseconds. Only debits and upstream counting, which
-- exceed limits, reach it.
local AHEAD_MAX = 2 ^ 52

-- Microseconds from the present to a TAT; 0 for a past one.
local function ahead(tat, now)
    return tat > now and tat - now or 0
end

gcra = {
    advance = function(_, _, now)
        return now
    end,

    available = function(state, limit, now)
        return limit.capacity - math.ceil(ahead(state.tat, now) / limit.cost)
    end,

    charge = function(state, limit, now, hits)
        local after = ahead(state.tat, now) + hits * limit.cost
        state.tat = now + (after < AHEAD_MAX and after or AHEAD_MAX)
        return state.tat, 0
    end,

    refund = function(state, limit, now, hits, at)
        local refunded = math.min(hits * limit.cost, ahead(at or state.tat, now), ahead(state.tat, now))
        state.tat = state.tat - refunded
        return refunded > 0
    end,

    retry_after = function(state, limit, now, hits)
        return ahead(state.tat, now + (limit.capacity - hits) * limit.cost)
    end,

    expires_after = function(state, _, now)
        return ahead(state.tat, now)
    end,

    read = function(value)
        local tat = value and integer(value) or not value and 0
        return tat and { tat = tat }
    end,

    write = function(state)
        return string.format('%.0f', state.tat)
    end,
}
