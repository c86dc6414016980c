-- Settles the checks of one call against the counters in Redis, as settle.rs of core does. The only
-- file of the scripts that calls Redis.
--
-- KEYS     the counters, each once.
-- ARGV[1]  the time in microseconds since the Unix epoch, or 0 for that of Redis.
-- ARGV[2]  the position of the first check in ARGV.
-- ARGV[3…] the limits, each of:
--            capacity × 8 + algorithm   position in `algorithms`: 1 fixed_window, 2 sliding_window_log,
--                                       3 sliding_window_counter, 4 token_bucket, 5 gcra
--            window                     1 to 3: microseconds
--            cost, refill_units,
--            refill_interval            4
--            cost                       5
--          and behind the limits it names, each chain, of:
--            length × 8 + 6
--            limit × 2^33 + hits        one for each of its checks
-- then     the checks, in order, each of:
--            word                       ((limit × 2^16 + key) × 4 + ends) × 32 + scope × 8 + charge:
--                                       limit is the limit's position in ARGV and key that in KEYS;
--                                       ends: 0 its descriptor goes on, 1 its group goes on, 2 last of
--                                       the group; scope of the descriptor's refusal: 0 none,
--                                       1 request, 2 quota;
--                                       charge: 0 exactly one, 1 exactly, 2 always, 3 refund,
--                                       4 refund with a receipt
--            hits                       all charges except 0
--            needs                      charge 2
--            at, used                   charge 4: the receipt
-- or       ((chain × 2^16 + key) × 2^16 + groups) × 8 + 7: this number of groups, each with the checks of the
--          chain, on that key and the next ones, which the call uses nowhere else; or, with 0, one group on
--          that key and the others that follow. Every check charges exactly its hits to a fixed window and
--          can refuse alone, and the checks of a group have different counters. The hits are at least one
--          and at most the capacity, which is below the window's microseconds.
-- Replies with the time, and for each check either
--            used × 4 + (2 if charged) + (1 if allowed), for a current fixed window, or
--            -1 - (charged × 2 + (1 if allowed)), remaining (below zero: by how much usage exceeds the
--            limit), microseconds until the reset, microseconds until a retry can pass (-1 for never),
--            and at and used of the receipt,
--          and then the position in KEYS of each key whose value is not a valid state: it counted as absent,
--          and is replaced when it is charged.
--
-- Every key is read at most once. It is written if a check charged or refunded it, so a refusal,
-- a peek and an empty refund write nothing, unless a key that refuses has no expiry: it gets one.

local call, try, format, type = redis.call, redis.pcall, string.format, type
local KEYS, ARGV = KEYS, ARGV

-- The longest expiry of a key, in microseconds.
local EXPIRY_MAX = 2 ^ 53 - 1

-- The most hits of a fixed window in the short reply.
local SHORT_MAX = 2 ^ 50

-- Digits of a present time.
local DIGITS = 16

-- The most keys read at once, because unpack is bounded by Lua's stack.
local READ_MAX = 4000

local EXACTLY_ONE, EXACTLY, ALWAYS, REFUND = 0, 1, 2, 3
local CHAIN, GROUPS = 6, 7

-- The stored queue of a log: a list of the sum before the first entry, then time and sum of each entry.
local open_queue
if sliding_window_log then
    -- The most elements pushed at once, because unpack is bounded by Lua's stack.
    local PUSH_MAX = 4000

    local function elements(queue, from, to)
        local list = call('LRANGE', queue.key, from, to)
        for position, element in ipairs(list) do
            local number = integer(element)
            queue.broken = queue.broken or not number
            list[position] = number or 0
        end
        return list
    end

    -- Time and sum of the entries from one number to another, alternating.
    local function entries(queue, from, to)
        return elements(queue, 2 * from - 1, 2 * to)
    end

    -- Time and sum of an entry.
    local function entry(queue, number)
        if 2 * number < #queue.head then
            return queue.head[2 * number], queue.head[2 * number + 1]
        end
        return unpack(entries(queue, number, number))
    end

    -- The sum before the first entry, and time and sum of the last entry.
    local function ends(queue)
        if queue.count == 0 then
            return 0, 0, 0
        end
        return queue.head[1], entry(queue, queue.count)
    end

    -- Removes all entries except those from one number to another. The sum before them becomes
    -- that of the previous entry, unless another is given.
    local function keep(queue, from, to, base)
        if from > 1 or to < queue.count then
            call('LTRIM', queue.key, 2 * (from - 1), 2 * to)
        end
        if base then
            call('LSET', queue.key, 0, base)
        end
    end

    local function clear(queue)
        if queue.count > 0 or queue.broken then
            call('DEL', queue.key)
        end
    end

    -- Marks the stored value as not a log, to be replaced.
    local function discard(queue)
        queue.broken, queue.count, queue.head = true, 0, {}
    end

    -- Appends the elements from a position on.
    local function push(queue, list, from)
        while from <= #list do
            local to = math.min(#list, from + PUSH_MAX - 1)
            call('RPUSH', queue.key, unpack(list, from, to))
            from = to + 1
        end
    end

    open_queue = function(key)
        local length = try('LLEN', key)
        -- The sum before the first entry, and two numbers for each.
        local fits = length == 0
            or type(length) == 'number' and length % 2 == 1 and length <= 2 * LOG_MAX + 1
        local queue = {
            key = key,
            count = fits and length > 0 and (length - 1) / 2 or 0,
            broken = not fits,
            entries = entries,
            entry = entry,
            ends = ends,
            keep = keep,
            clear = clear,
            push = push,
            discard = discard,
        }
        queue.head = fits and length > 0 and elements(queue, 0, 4) or {}
        if queue.broken then
            discard(queue)
        end
        return queue
    end
end

local now = ARGV[1] + 0
if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
end
if now > TIME_MAX then
    now = TIME_MAX
end

-- A number as text. Redis' own conversion is slower.
local function text(number)
    return format('%.0f', number)
end

-- Expiry of a key in milliseconds, as text.
local function expiry(micros)
    return text(math.ceil(math.min(micros, EXPIRY_MAX) / 1000))
end

-- Adds to the number under a key. Returns the sum, or an error if the value is not a number.
local function increase(key, by)
    if by == 1 then
        return try('INCR', key)
    end
    return try('INCRBY', key, text(by))
end

local limits = {}
local position, first_check = 3, ARGV[2] + 0

-- A chain: for each check the limit, the hits, the start of the window, and the largest stored value with
-- which the hits fit, as text.
local function chain_at(at, length)
    local chain = { limits = {}, hits = {}, starts = {}, most = {}, fits = true }
    for place = 1, length do
        local number = ARGV[at + place] + 0
        local hits = number % 2 ^ 33
        local limit = limits[(number - hits) / 2 ^ 33]
        local start = now - now % limit.window
        chain.limits[place] = limit
        chain.hits[place] = hits
        chain.starts[place] = start
        chain.most[place] = text(start + limit.capacity - hits)
        chain.fits = chain.fits and #chain.most[place] == DIGITS
    end
    return chain
end

while position < first_check do
    local number = ARGV[position] + 0
    local code = number % 8
    local rest = (number - code) / 8
    if code == CHAIN then
        limits[position] = chain_at(position, rest)
        position = position + 1 + rest
    elseif code == 4 then
        limits[position] = {
            algorithm = algorithms[code],
            capacity = rest,
            cost = ARGV[position + 1] + 0,
            refill_units = ARGV[position + 2] + 0,
            refill_interval = ARGV[position + 3] + 0,
        }
        position = position + 4
    else
        -- For GCRA it is its cost.
        local span = ARGV[position + 1] + 0
        limits[position] =
            { algorithm = algorithms[code], capacity = rest, window = span, cost = span }
        position = position + 2
    end
end

-- The stored value of each key that is not a log.
local values
local function read()
    values = call('MGET', unpack(KEYS, 1, math.min(#KEYS, READ_MAX)))
    for first = READ_MAX + 1, #KEYS, READ_MAX do
        local more = call('MGET', unpack(KEYS, first, math.min(#KEYS, first + READ_MAX - 1)))
        for place, value in ipairs(more) do
            values[first + place - 1] = value
        end
    end
end

-- By key: the state, whether it is stored, the number of charges and refunds of this call that are not undone, and
-- the limit of the last check.
local states, exists, changes, last_limits = {}, {}, {}, {}

-- By key: whether the stored value is not a valid state, and whether the key is known to expire.
local invalid, expires = {}, {}

-- By key: the hits used of a counter that several chains check, once they have charged it, as stored.
local used_of = {}

-- The state of an unused counter, in place of the stored value.
local function absent(found, limit)
    if limit.algorithm == sliding_window_log then
        found:discard()
        return limit.algorithm.read(found, limit)
    end
    return limit.algorithm.read(nil, limit)
end

local function open(key, limit)
    local found
    if limit.algorithm == sliding_window_log then
        found = open_queue(KEYS[key])
    else
        if not values then
            read()
        end
        found = values[key]
        local used = used_of[key]
        if used then
            found = text(now - now % limit.window + used)
            used_of[key] = nil
        end
    end
    local state = limit.algorithm.read(found, limit)
    exists[key] = found and (found.count ~= 0 or found.broken)
    if not state or found and found.broken then
        invalid[key] = true
        state = absent(found, limit)
    end
    states[key] = state
    changes[key] = 0
    return state
end

local answers, last_answer = { now }, 1

-- The checks of the group so far, for each: key, limit, time, charge; and six numbers as in the long reply,
-- except the first, which is charged × 2 + (1 if allowed).
local checks = 0
local keys_of, limits_of, times_of, charges_of, results = {}, {}, {}, {}, {}
local first_of_descriptor, over = 1, false
local request_over, quota, quota_over = false, 0, 0

-- Fills in the remaining hits of a check's counter.
local function update_remaining(check, limit, state, time)
    local algorithm = limit.algorithm
    results[6 * check - 4] = algorithm.available(state, limit, time)
    results[6 * check - 3] = (algorithm.reset_after or algorithm.expires_after)(state, limit, time)
end

-- Refunds, newest first, the conditional charges of the checks from one on, and describes their counters again.
-- Another limit may have rescaled a state to its own units.
local function undo_charges(first)
    for check = checks, first, -1 do
        local verdict = results[6 * check - 5]
        if charges_of[check] <= EXACTLY and verdict > 1 then
            local key, limit = keys_of[check], limits_of[check]
            local allowed = verdict % 2
            local charged = (verdict - allowed) / 2
            local at, used = results[6 * check - 1], results[6 * check]
            limit.algorithm.advance(states[key], limit, times_of[check]) -- fix: undo-in-own-units-in-lua
            limit.algorithm.refund(states[key], limit, times_of[check], charged, at, used)
            changes[key] = changes[key] - 1
            results[6 * check - 5] = allowed
        end
    end
    for check = first, checks do
        if charges_of[check] <= EXACTLY then
            local limit, state, time = limits_of[check], states[keys_of[check]], times_of[check]
            limit.algorithm.advance(state, limit, time) -- fix: undo-in-own-units-in-lua
            update_remaining(check, limit, state, time)
        end
    end
end

-- Whether the stored state of a key is a valid reason for a refusal. Everything that these scripts write
-- expires; a key without expiry could refuse without end. It gets an expiry if its usage is at most the limit
-- and current, else it is not a valid state.
local function may_refuse(key, limit, state, time)
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
    states[key] = absent(state.queue, limit)
    return false
end

-- Checks one counter, and charges it as the check demands.
local settle_check
function settle_check(key, limit, charge, hits, needs, at, used)
    local algorithm = limit.algorithm
    local state = states[key] or open(key, limit)
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

    -- The retry time is computed before the charge: the wait is for these hits, once.
    local retry_after = 0
    if not allowed then
        if not may_refuse(key, limit, state, time) then
            return settle_check(key, limit, charge, hits, needs, at, used)
        end
        over = true
        needs = needs > 0 and needs or 1
        retry_after = needs > limit.capacity and -1 or algorithm.retry_after(state, limit, time, needs)
    end
    at, used = 0, 0
    if charged > 0 then
        at, used = algorithm.charge(state, limit, time, charged)
        changes[key] = changes[key] + 1
    end
    last_limits[key] = limit
    checks = checks + 1
    keys_of[checks], limits_of[checks] = key, limit
    times_of[checks], charges_of[checks] = time, charge
    results[6 * checks - 5] = charged * 2 + (allowed and 1 or 0)
    update_remaining(checks, limit, state, time)
    results[6 * checks - 2] = retry_after
    results[6 * checks - 1] = at
    results[6 * checks] = used
end

-- Adds the answer to a check of the group.
local function answer(check)
    local limit, verdict, available = limits_of[check], results[6 * check - 5], results[6 * check - 4]
    if limit.algorithm == fixed_window and times_of[check] == now then
        local used = limit.capacity - available
        if used < SHORT_MAX then
            last_answer = last_answer + 1
            answers[last_answer] = used * 4 + verdict % 2 + (verdict > 1 and 2 or 0)
            return
        end
    end
    answers[last_answer + 1] = -1 - verdict
    for place = 2, 6 do
        answers[last_answer + place] = results[6 * check - 6 + place]
    end
    last_answer = last_answer + 6
end

-- Ends a descriptor, and the group if it is the last.
local function close(scope, last)
    if over then
        undo_charges(first_of_descriptor)
    end
    if scope == 1 then
        request_over = request_over or over
    elseif scope == 2 then
        quota = quota + 1
        quota_over = quota_over + (over and 1 or 0)
    end
    first_of_descriptor, over = checks + 1, false
    if last then
        if request_over or quota > 0 and quota_over == quota then
            undo_charges(1)
        end
        for check = 1, checks do
            answer(check)
        end
        checks, first_of_descriptor = 0, 1
        request_over, quota, quota_over = false, 0, 0
    end
end

-- Refuses a group of a chain on these keys if the hits do not fit one of its counters. Returns false without
-- effect if the general path is needed: a counter is not stored as a number, is ahead of the present, or
-- already has a state.
local function refuse(chain, keys)
    local refused = false
    for place, start in ipairs(chain.starts) do
        local key, limit = keys[place], chain.limits[place]
        local used = used_of[key]
        if not used then
            local value = values[key]
            used = value and tonumber(value) or start
            used = used > start and used - start or 0
            if states[key] or value and #value ~= DIGITS or used >= limit.window then
                return false
            end
        end
        local fits = used + chain.hits[place] <= limit.capacity
        refused = refused or not fits
        answers[last_answer + place] = used * 4 + (fits and 1 or 0)
    end
    last_answer = last_answer + (refused and #keys or 0)
    return refused
end

-- Settles groups of a chain: one on these keys, or several on consecutive keys. Stored numbers
-- are compared as text, because parsing them takes longer than the rest.
local function settle(chain, keys, before, groups)
    local hits, starts, most, length = chain.hits, chain.starts, chain.most, #chain.most
    local call, values, names, answers = call, values, KEYS, answers
    for _ = 1, groups do
        local fits = chain.fits
        for place = 1, length do
            local value
            if keys then
                local key = keys[place]
                local used = used_of[key]
                if states[key] or used and used + hits[place] > chain.limits[place].capacity then
                    fits = false
                end
                value = not used and values[key]
            else
                value = values[before + place]
            end
            if value and (value > most[place] or #value ~= DIGITS) then
                fits = false
            end
        end
        if fits then
            local at = last_answer
            for place = 1, length do
                local key = keys and keys[place] or before + place
                local name, wanted, used = names[key], hits[place], 0
                if values[key] then
                    local sum = wanted == 1 and try('INCR', name) or increase(name, wanted)
                    if type(sum) == 'number' then
                        used = sum - starts[place]
                    else
                        invalid[key] = true
                    end
                end
                if used < wanted then
                    -- The key was absent, or of an earlier window.
                    used = wanted
                    local lives = starts[place] + chain.limits[place].window - now
                    call('SET', name, text(starts[place] + used), 'PX', expiry(lives))
                    values[key] = ''
                end
                if keys then
                    used_of[key] = used
                end
                answers[at + place] = used * 4 + 3
            end
            last_answer = at + length
        else
            local keys = keys or {}
            for place = 1, length do
                keys[place] = keys[place] or before + place
            end
            if not refuse(chain, keys) then
                for place, key in ipairs(keys) do
                    settle_check(key, chain.limits[place], EXACTLY, hits[place])
                    close(1, place == length)
                end
            end
        end
        before = before + length
    end
end

local last = #ARGV
while position <= last do
    local word = ARGV[position] + 0
    position = position + 1
    local charge = word % 8
    word = (word - charge) / 8
    if charge == GROUPS then
        if not values then
            read()
        end
        local groups = word % 65536
        word = (word - groups) / 65536
        local key = word % 65536
        local chain = limits[(word - key) / 65536]
        if groups > 0 then
            settle(chain, nil, key - 1, groups)
        else
            local keys = { key }
            for place = 2, #chain.most do
                keys[place] = ARGV[position] + 0
                position = position + 1
            end
            settle(chain, keys, 0, 1)
        end
    else
        local scope = word % 4
        word = (word - scope) / 4
        local ends = word % 4
        word = (word - ends) / 4
        local key = word % 65536
        local hits, needs, at, used = 1, nil, nil, nil
        if charge > EXACTLY_ONE then
            hits = ARGV[position] + 0
            position = position + 1
        end
        if charge == ALWAYS then
            needs = ARGV[position] + 0
            position = position + 1
        elseif charge > REFUND then
            at, used = ARGV[position] + 0, ARGV[position + 1] + 0
            position = position + 2
        end
        settle_check(key, limits[(word - key) / 65536], charge, hits, needs, at, used)
        if ends > 0 then
            close(scope, ends == 2)
        end
    end
end

for key, state in pairs(states) do
    local queue = state.queue
    if queue and queue.broken and queue.count > 0 then
        -- Detected meanwhile.
        invalid[key] = true
        call('DEL', KEYS[key])
    elseif changes[key] > 0 then
        local limit = last_limits[key]
        local algorithm = limit.algorithm
        local time = algorithm.advance(state, limit, now)
        local expires_after = algorithm.expires_after(state, limit, time)
        if expires_after == 0 then
            if exists[key] then
                call('DEL', KEYS[key])
            end
        elseif algorithm == sliding_window_log then
            algorithm.write(state)
            call('PEXPIRE', KEYS[key], expiry(time - now + expires_after))
        else
            local value, growth = algorithm.write(state, limit)
            if growth then
                increase(KEYS[key], growth)
            else
                call('SET', KEYS[key], value, 'PX', expiry(time - now + expires_after))
            end
        end
    end
end

for key in pairs(invalid) do
    last_answer = last_answer + 1
    answers[last_answer] = key
end

return answers
