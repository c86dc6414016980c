-- Token bucket: starts full, refills steadily up to its capacity, and each hit takes a token.
--
-- Tokens are counted in units, so that refills are integers: a hit takes `cost` units, and each tick of
-- `refill_interval` microseconds refills `refill_units`. A state has the units `used` that are not refilled
-- yet, the `cost` of the limit that they were counted with, and the time `last` up to which refills have been
-- counted, in microseconds since the Unix epoch: the start of the current tick, or the time at which the bucket
-- was last full. It is stored as `last:used:cost`. A product above 2^53 may be inexact. That is harmless,
-- because it is capped at a bound below 2^53.

-- The most used units of a state.
local USED_MAX = 2 ^ 53 - 1

-- The longest duration in an answer.
local SPAN_MAX = 2 ^ 53 - 1

-- Every cost is below this. With larger ones products would not be exact.
local COST_END = 2 ^ 45

local ceil, min = math.ceil, math.min

-- Microseconds since the last counted tick. After `advance` less than a tick.
local function elapsed(state, now)
    return now > state.last and now - state.last or 0
end

-- Used units at the present, with the refill of the part of the tick that has passed. Rounded down.
local function used_at(state, limit, now)
    local refilled = mul_div_ceil(limit.refill_units, elapsed(state, now), limit.refill_interval)
    return refilled < state.used and state.used - refilled or 0
end

-- Used units, converted from a cost of `from` units per hit to a cost of `to`. Rounded up.
local function rescaled(used, from, to)
    if used == 0 then
        return 0
    end
    local rest = used % from
    return min((used - rest) / from * to + mul_div_ceil(to, rest, from), USED_MAX)
end

local function advance(state, limit, now)
    if state.cost ~= limit.cost then
        state.used = rescaled(state.used, state.cost, limit.cost)
        state.cost = limit.cost
    end
    if now < state.last then
        now = min(state.last, TIME_MAX)
    end
    local passed = elapsed(state, now)
    local part = passed % limit.refill_interval
    local refilled = (passed - part) / limit.refill_interval * limit.refill_units
    state.used = refilled < state.used and state.used - refilled or 0
    state.last = state.last + passed - part
    if state.used <= mul_div(limit.refill_units, part, limit.refill_interval) then
        state.used = 0
        state.last = now
    end
    return now
end

local function expires_after(state, limit, now)
    local rest = state.used % limit.refill_units
    local ticks = (state.used - rest) / limit.refill_units
    local last_tick = mul_div_ceil(limit.refill_interval, rest, limit.refill_units)
    local refill = min(ticks * limit.refill_interval + last_tick, SPAN_MAX)
    local passed = elapsed(state, now)
    return refill > passed and refill - passed or 0
end

token_bucket = {
    advance = advance,

    available = function(state, limit)
        return limit.capacity - ceil(state.used / limit.cost)
    end,

    charge = function(state, limit, _, hits)
        state.used = min(state.used + hits * limit.cost, USED_MAX)
        return state.last, state.used
    end,

    refund = function(state, limit, now, hits, at, used)
        local refunded = min(hits * limit.cost, state.used)
        if at then
            local receipt = { last = at, used = used, cost = state.cost }
            advance(receipt, limit, now)
            refunded = min(refunded, used_at(receipt, limit, now))
        end
        state.used = state.used - refunded
        advance(state, limit, now)
        return refunded > 0
    end,

    retry_after = function(state, limit, now, hits)
        local may_be_used = (limit.capacity - hits) * limit.cost
        if state.used <= may_be_used then
            return 0
        end
        local ticks = ceil((state.used - may_be_used) / limit.refill_units)
        local refill = min(ticks * limit.refill_interval, SPAN_MAX)
        local passed = elapsed(state, now)
        return min(refill > passed and refill - passed or 0, expires_after(state, limit, now))
    end,

    expires_after = expires_after,

    read = function(value)
        if not value then
            return { last = 0, used = 0, cost = 0 }
        end
        local last, used, cost = integers(string.match(value, '^(%d+):(%d+):(%d+)$'))
        if last and last <= TIME_MAX and cost >= 1 and cost < COST_END then
            return { last = last, used = used, cost = cost }
        end
    end,

    write = function(state)
        return string.format('%.0f:%.0f:%.0f', state.last, state.used, state.cost)
    end,
}
