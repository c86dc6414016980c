-- Sliding window log: stores the time of every hit until a window has passed.
--
-- The log is a queue of entries, oldest first, each with the time `at` of its hits and the `sum` of all
-- hits up to and with them since the counter began: it takes 28,000 years of 10,000 hits a second to
-- pass 2^53. Differences of sums tell how many hits count, and an entry is found by time or sum in few
-- steps, so that a decision costs the same whatever the window holds.
--
-- A state is a view of the stored queue. It has the numbers of the `first` entry that counts and of the
-- `last` one, the sum before the first (`base`), the hits `used` since then and the time of the `newest`
-- entry, 0 without any. Entries after number `kept` are no longer, or not yet, as stored: `fresh` has
-- them, at and sum by turns.

-- The most hits of a log.
local LOG_MAX = 10000

local AT, SUM = 1, 2

-- Time and sum of an entry.
local function entry(state, number)
    if number <= state.kept then
        return state.queue:entry(number)
    end
    local position = 2 * (number - state.kept)
    -- In a queue with invalid elements a search may end anywhere.
    return state.fresh[position - 1] or 0, state.fresh[position] or 0
end

-- Number of the first entry whose time or sum is above a bound. Starts with the oldest and
-- doubles its steps, because usually few have expired.
local function first_above(state, field, bound)
    local low, high, step = state.first, state.last + 1, 0
    while low < high do
        local probe = low + math.min(step, math.floor((high - low) / 2))
        if select(field, entry(state, probe)) > bound then
            high = probe
        else
            low = probe + 1
            step = 2 * step + 1
        end
    end
    return low
end

-- Drops the entries before a number.
local function drop(state, first)
    state.first = first
    if first > state.last then
        state.newest = 0
    end
end

-- Removes entries from a number on from the stored queue, so that they can be changed.
local function unstore(state, number)
    if number <= state.kept then
        local fresh = state.queue:entries(number, state.kept)
        for _, value in ipairs(state.fresh) do
            fresh[#fresh + 1] = value
        end
        state.fresh = fresh
        state.kept = number - 1
    end
end

-- Refunds hits of the time `at`. Returns their number.
local function refund_at(state, hits, at)
    local number = at == state.newest and state.last or first_above(state, AT, at - 1)
    if number > state.last or entry(state, number) ~= at then
        return 0
    end
    local before = state.base
    if number > state.first then
        before = select(SUM, entry(state, number - 1))
    end
    local given = math.min(hits, select(SUM, entry(state, number)) - before)
    unstore(state, number)
    local fresh = state.fresh
    local position = 2 * (number - state.kept)
    for later = position, #fresh, 2 do
        fresh[later] = fresh[later] - given
    end
    if fresh[position] == before then
        table.remove(fresh, position)
        table.remove(fresh, position - 1)
        state.last = state.last - 1
        state.newest = state.last >= state.first and entry(state, state.last) or 0
    end
    return given
end

-- Refunds hits, the oldest first. Returns their number.
local function refund_oldest(state, hits)
    local given = math.min(hits, state.used)
    state.base = state.base + given
    state.rebased = true
    drop(state, first_above(state, SUM, state.base))
    return given
end

-- Microseconds until the hits of a time no longer count.
local function expires_after(at, limit, now)
    local expires = at + limit.window
    return expires > now and expires - now or 0
end

sliding_window_log = {
    advance = function(state, limit, now)
        local newest = state.newest
        local expired = now - limit.window
        local all = newest <= expired
        if state.first <= state.last and (all or entry(state, state.first) <= expired) then
            local first = all and state.last + 1 or first_above(state, AT, expired)
            local base = select(SUM, entry(state, first - 1))
            state.used = state.used - (base - state.base)
            state.base = base
            drop(state, first)
        end
        return now > newest and now or newest
    end,

    available = function(state, limit)
        return limit.capacity - state.used
    end,

    charge = function(state, _, now, hits)
        hits = math.min(hits, LOG_MAX - state.used)
        state.used = state.used + hits
        if hits > 0 then
            if state.newest == now then
                unstore(state, state.last)
            else
                state.last = state.last + 1
                state.newest = now
            end
            local position = 2 * (state.last - state.kept)
            state.fresh[position - 1] = now
            state.fresh[position] = state.base + state.used
        end
        return now, 0
    end,

    refund = function(state, _, _, hits, at)
        local given = at and refund_at(state, hits, at) or refund_oldest(state, hits)
        state.used = state.used - given
        return given > 0
    end,

    retry_after = function(state, limit, now, hits)
        local excess = state.used + hits - limit.capacity
        if excess <= 0 then
            return 0
        end
        local last_to_go = first_above(state, SUM, state.base + excess - 1)
        return expires_after(entry(state, last_to_go), limit, now)
    end,

    expires_after = function(state, limit, now)
        return state.used == 0 and 0 or expires_after(state.newest, limit, now)
    end,

    read = function(queue)
        local base, newest, sum = queue:ends()
        if sum < base or sum - base > LOG_MAX or newest > TIME_MAX then
            return nil
        end
        return {
            queue = queue,
            first = 1,
            last = queue.count,
            kept = queue.count,
            fresh = {},
            base = base,
            used = sum - base,
            newest = newest,
        }
    end,

    write = function(state)
        local first, kept = state.first, state.kept
        if first > kept then
            state.queue:clear()
            state.queue:push({ state.base }, 1)
        else
            state.queue:keep(first, kept, state.rebased and state.base)
        end
        state.queue:push(state.fresh, 2 * math.max(first - kept, 1) - 1)
    end,
}
