-- Sliding window log: stores the time of every hit until a window has passed.
--
-- The log is a queue of entries, oldest first. Each has the time `at` of its hits and the `sum` of all hits
-- since the counter began, including its own; 10,000 hits a second reach 2^53 after 28,000 years. The
-- difference of two sums is the number of hits between them. Entries are found by binary search, by time
-- or sum, so that a decision costs about the same however many hits are in the window.
--
-- A state is a view of the stored queue. It has the numbers of the `first` and of the `last` entry that
-- count, the sum before the first (`base`), the hits `used` since then and the time of the `newest`
-- entry, 0 without entries. Entries up to number `stored` are as in Redis. Later ones are new or
-- changed: `changed` has at and sum of each, alternating.

-- The most hits that a log records.
local LOG_MAX = 10000

local AT, SUM = 1, 2

-- Time and sum of an entry.
local function entry(state, number)
    if number <= state.stored then
        return state.queue:entry(number)
    end
    local position = 2 * (number - state.stored)
    -- Absent only if the stored queue has invalid elements, which can mislead a search.
    return state.changed[position - 1] or 0, state.changed[position] or 0
end

-- Number of the first entry whose time or sum is above a bound. Searches from the oldest entry in
-- doubling steps, because usually few entries have expired.
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

-- Removes the entries before a number.
local function drop_before(state, first)
    state.first = first
    if first > state.last then
        state.newest = 0
    end
end

-- Copies the stored entries from a number on into `changed`, so that they can be changed.
local function copy_to_changed(state, number)
    if number <= state.stored then
        local changed = state.queue:entries(number, state.stored)
        for _, value in ipairs(state.changed) do
            changed[#changed + 1] = value
        end
        state.changed = changed
        state.stored = number - 1
    end
end

-- Refunds hits that were charged at the time `at`. Returns their number.
local function refund_at(state, hits, at)
    local number = at == state.newest and state.last or first_above(state, AT, at - 1)
    if number > state.last or entry(state, number) ~= at then
        return 0
    end
    local before = state.base
    if number > state.first then
        before = select(SUM, entry(state, number - 1))
    end
    local refunded = math.min(hits, select(SUM, entry(state, number)) - before)
    copy_to_changed(state, number)
    local changed = state.changed
    local position = 2 * (number - state.stored)
    for later = position, #changed, 2 do
        changed[later] = changed[later] - refunded
    end
    if changed[position] == before then
        table.remove(changed, position)
        table.remove(changed, position - 1)
        state.last = state.last - 1
        state.newest = state.last >= state.first and entry(state, state.last) or 0
    end
    return refunded
end

-- Refunds the oldest hits. Returns their number.
local function refund_oldest(state, hits)
    local refunded = math.min(hits, state.used)
    state.base = state.base + refunded
    state.rebased = true
    drop_before(state, first_above(state, SUM, state.base))
    return refunded
end

-- Microseconds until hits charged at the time `at` expire.
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
            drop_before(state, first)
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
                copy_to_changed(state, state.last)
            else
                state.last = state.last + 1
                state.newest = now
            end
            local position = 2 * (state.last - state.stored)
            state.changed[position - 1] = now
            state.changed[position] = state.base + state.used
        end
        return now, 0
    end,

    refund = function(state, _, _, hits, at)
        local refunded = at and refund_at(state, hits, at) or refund_oldest(state, hits)
        state.used = state.used - refunded
        return refunded > 0
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
            stored = queue.count,
            changed = {},
            base = base,
            used = sum - base,
            newest = newest,
        }
    end,

    write = function(state)
        local first, stored = state.first, state.stored
        if first > stored then
            state.queue:clear()
            state.queue:push({ state.base }, 1)
        else
            state.queue:keep(first, stored, state.rebased and state.base)
        end
        state.queue:push(state.changed, 2 * math.max(first - stored, 1) - 1)
    end,
}
