-- Checks of any kind, one by one.

-- The reply, and the number of its elements.
local answers, last_answer = { now }, 1

-- The present group: the number of its checks so far, and for each check the key, the limit, the time, the charge,
-- and in `results` the six numbers of the long reply, of which the first one, the outcome, is stored as charged × 2
-- + (1 if allowed), not negated.
local check_count = 0
local keys_of, limits_of, times_of, charges_of, results = {}, {}, {}, {}, {}
-- The first check of the present descriptor, and whether one of its checks is refused.
local first_of_descriptor, descriptor_over = 1, false
-- Whether a descriptor refuses the request; the number of quota descriptors, and of those that are over.
local request_over, quota, quota_over = false, 0, 0

-- Sets remaining hits and reset of a check's result.
local function update_remaining(check, limit, state, time)
    local algorithm = limit.algorithm
    results[6 * check - 4] = algorithm.available(state, limit, time)
    results[6 * check - 3] = (algorithm.reset_after or algorithm.expires_after)(state, limit, time)
end

-- Undoes the conditional charges of the group's checks from number `first` on, the newest first, and updates their
-- results. A state is advanced before, because another limit may have rescaled it to its own units.
local function undo_charges(first)
    for check = check_count, first, -1 do
        local outcome = results[6 * check - 5]
        if charges_of[check] <= IF_ALLOWED and outcome > 1 then
            local key, limit = keys_of[check], limits_of[check]
            local allowed = outcome % 2
            local charged = (outcome - allowed) / 2
            local at, used = results[6 * check - 1], results[6 * check]
            limit.algorithm.advance(states[key], limit, times_of[check]) -- fix: undo-in-own-units-in-lua
            limit.algorithm.refund(states[key], limit, times_of[check], charged, at, used)
            changes[key] = changes[key] - 1
            results[6 * check - 5] = allowed
        end
    end
    for check = first, check_count do
        if charges_of[check] <= IF_ALLOWED then
            local limit, state, time = limits_of[check], states[keys_of[check]], times_of[check]
            limit.algorithm.advance(state, limit, time) -- fix: undo-in-own-units-in-lua
            update_remaining(check, limit, state, time)
        end
    end
end

-- Whether a refusal by the stored state of a key is valid. These scripts write every key with an expiry; a key
-- without one was written by something else, or lost it, and could refuse without end. If the state's time is not
-- in the future and its usage is within the limit, the key gets an expiry. Otherwise the state is discarded as
-- invalid.
local function validate_refusal(key, limit, state, time)
    if not exists[key] or expires[key] or changes[key] > 0 or try('PTTL', KEYS[key]) ~= -1 then
        expires[key] = true
        return true
    end
    expires[key] = true
    local algorithm = limit.algorithm
    if time == now and algorithm.available(state, limit, time) >= 0 then
        call('PEXPIRE', KEYS[key], expiry(algorithm.expires_after(state, limit, time)))
        return true
    end
    invalid[key] = true
    states[key] = unused_state(state.queue, limit)
    return false
end

-- Checks and charges one counter.
local settle_check
function settle_check(key, limit, charge, hits, needs, at, used)
    local algorithm = limit.algorithm
    local state = states[key] or open_state(key, limit)
    local time = algorithm.advance(state, limit, now)
    local allowed, charged = true, 0
    if charge >= REFUND then
        if algorithm.refund(state, limit, time, hits, at, used) then
            changes[key] = changes[key] + 1
        end
    else
        local available = algorithm.available(state, limit, time)
        if charge == ALWAYS then
            allowed, charged = needs <= available, hits
        else
            needs = hits > 0 and hits or 1
            allowed = needs <= available
            charged = allowed and hits or 0
        end
    end

    -- Before the charge, because a retry needs room for these hits only once.
    local retry_after = 0
    if not allowed then
        if not validate_refusal(key, limit, state, time) then
            return settle_check(key, limit, charge, hits, needs, at, used)
        end
        descriptor_over = true
        needs = needs > 0 and needs or 1
        retry_after = needs > limit.capacity and -1 or algorithm.retry_after(state, limit, time, needs)
    end
    at, used = 0, 0
    if charged > 0 then
        at, used = algorithm.charge(state, limit, time, charged)
        changes[key] = changes[key] + 1
    end
    last_limits[key] = limit
    check_count = check_count + 1
    keys_of[check_count], limits_of[check_count] = key, limit
    times_of[check_count], charges_of[check_count] = time, charge
    results[6 * check_count - 5] = charged * 2 + (allowed and 1 or 0)
    update_remaining(check_count, limit, state, time)
    results[6 * check_count - 2] = retry_after
    results[6 * check_count - 1] = at
    results[6 * check_count] = used
end

-- Adds the answer to a check of the group to the reply.
local function add_answer(check)
    local limit, outcome, available = limits_of[check], results[6 * check - 5], results[6 * check - 4]
    if limit.algorithm == fixed_window and times_of[check] == now then
        local used = limit.capacity - available
        if used < SHORT_MAX then
            last_answer = last_answer + 1
            answers[last_answer] = used * 4 + outcome % 2 + (outcome > 1 and 2 or 0)
            return
        end
    end
    answers[last_answer + 1] = -1 - outcome
    for index = 2, 6 do
        answers[last_answer + index] = results[6 * check - 6 + index]
    end
    last_answer = last_answer + 6
end

-- Ends a descriptor, and its group if the descriptor is the last one: undoes the charges of refused ones, and adds the
-- answers of the group.
local function end_descriptor(scope, last)
    if descriptor_over then
        undo_charges(first_of_descriptor)
    end
    if scope == 1 then
        request_over = request_over or descriptor_over
    elseif scope == 2 then
        quota = quota + 1
        quota_over = quota_over + (descriptor_over and 1 or 0)
    end
    first_of_descriptor, descriptor_over = check_count + 1, false
    if last then
        if request_over or quota > 0 and quota_over == quota then
            undo_charges(1)
        end
        for check = 1, check_count do
            add_answer(check)
        end
        check_count, first_of_descriptor = 0, 1
        request_over, quota, quota_over = false, 0, 0
    end
end
