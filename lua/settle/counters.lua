-- Reading of counters.

-- By key: the stored value, if it is not a log.
local values
local function read_values()
    values = call('MGET', unpack(KEYS, 1, math.min(#KEYS, READ_MAX)))
    for first = READ_MAX + 1, #KEYS, READ_MAX do
        local more = call('MGET', unpack(KEYS, first, math.min(#KEYS, first + READ_MAX - 1)))
        for index, value in ipairs(more) do
            values[first + index - 1] = value
        end
    end
end

-- By key: the state, whether the key exists, the number of charges and refunds of this call that were not undone,
-- and the limit of the last check.
local states, exists, changes, last_limits = {}, {}, {}, {}

-- By key: whether the stored value is not a valid state, and whether the key is known to expire.
local invalid, expires = {}, {}

-- By key: the used hits of a counter, after a group of a chain with listed keys has charged it in this call.
-- `values` still has the value that was read before.
local used_of = {}

-- The state of an unused counter, for a key whose stored value is invalid.
local function unused_state(stored, limit)
    if limit.algorithm == sliding_window_log then
        stored:discard()
        return limit.algorithm.read(stored, limit)
    end
    return limit.algorithm.read(nil, limit)
end

-- The state of a counter, from its stored value.
local function open_state(key, limit)
    local stored
    if limit.algorithm == sliding_window_log then
        stored = open_queue(KEYS[key])
    else
        if not values then
            read_values()
        end
        stored = values[key]
        local used = used_of[key]
        if used then
            stored = to_text(now - now % limit.window + used)
            used_of[key] = nil
        end
    end
    local state = limit.algorithm.read(stored, limit)
    exists[key] = stored and (stored.count ~= 0 or stored.invalid)
    if not state or stored and stored.invalid then
        invalid[key] = true
        state = unused_state(stored, limit)
    end
    states[key] = state
    changes[key] = 0
    return state
end
