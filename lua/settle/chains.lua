-- Groups of chains: fixed windows that need no state, because one INCR or SET per key settles them.

-- Refuses a group of a chain on these keys, if the hits do not fit one of its counters. Returns false
-- without an answer if no counter refuses, or if the group must be settled check by check: a counter is not stored
-- as a number, is ahead of the present, or already has a state.
local function refuse_chain(chain, keys)
    local refused = false
    for index, start in ipairs(chain.starts) do
        local key, limit = keys[index], chain.limits[index]
        local used = used_of[key]
        if not used then
            local value = values[key]
            used = value and tonumber(value) or start
            used = used > start and used - start or 0
            if states[key] or value and #value ~= DIGITS or used >= limit.window then
                return false
            end
        end
        local fits = used + chain.hits[index] <= limit.capacity
        refused = refused or not fits
        answers[last_answer + index] = used * 4 + (fits and 1 or 0)
    end
    last_answer = last_answer + (refused and #keys or 0)
    return refused
end

-- Settles groups of a chain: one on `keys`, or several on consecutive keys after the key at `offset`. Stored numbers
-- are compared as text, because parsing them takes longer than all other steps.
local function settle_chain(chain, keys, offset, groups)
    local hits, starts, largest, length = chain.hits, chain.starts, chain.largest, #chain.largest
    local call, values, names, answers = call, values, KEYS, answers
    for _ = 1, groups do
        local is_fast = chain.is_comparable
        for index = 1, length do
            local value
            if keys then
                local key = keys[index]
                local used = used_of[key]
                if states[key] or used and used + hits[index] > chain.limits[index].capacity then
                    is_fast = false
                end
                value = not used and values[key]
            else
                value = values[offset + index]
            end
            if value and (value > largest[index] or #value ~= DIGITS) then
                is_fast = false
            end
        end
        if is_fast then
            local at = last_answer
            for index = 1, length do
                local key = keys and keys[index] or offset + index
                local name, wanted, used = names[key], hits[index], 0
                if values[key] then
                    local sum = wanted == 1 and try('INCR', name) or increase(name, wanted)
                    if type(sum) == 'number' then
                        used = sum - starts[index]
                    else
                        invalid[key] = true
                    end
                end
                if used < wanted then
                    -- The key did not exist, or is of an earlier window.
                    used = wanted
                    local lifetime = starts[index] + chain.limits[index].window - now
                    call('SET', name, to_text(starts[index] + used), 'PX', expiry(lifetime))
                    values[key] = ''
                end
                if keys then
                    used_of[key] = used
                end
                answers[at + index] = used * 4 + 3
            end
            last_answer = at + length
        else
            local keys = keys or {}
            for index = 1, length do
                keys[index] = keys[index] or offset + index
            end
            if not refuse_chain(chain, keys) then
                for index, key in ipairs(keys) do
                    settle_check(key, chain.limits[index], IF_ALLOWED, hits[index])
                    end_descriptor(1, index == length)
                end
            end
        end
        offset = offset + length
    end
end
