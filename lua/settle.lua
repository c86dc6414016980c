-- Settles the checks of one call against the counters in Redis: the twin of core's settle.rs, and the
-- only file that calls Redis.
--
-- KEYS     the counters, each once.
-- ARGV[1]  the time in microseconds since the Unix epoch, or 0 for that of Redis.
-- ARGV[2]  the position of the first check in ARGV.
-- ARGV[3…] the limits, each of:
--            capacity × 8 + algorithm   1 fixed_window, 2 sliding_window_log, 3 sliding_window_counter,
--                                       4 token_bucket, 5 gcra
--            window                     1 to 3: microseconds
--            cost, gain, tick           4
--            cost                       5
--          and behind the limits it names, each chain, of:
--            length × 8 + 6
--            limit × 2^33 + hits        one for each of its checks
-- then     the checks, in order, each of:
--            word                       ((limit × 2^16 + key) × 4 + ends) × 32 + veto × 8 + take, where
--                                       limit is the limit's position in ARGV and key that in KEYS;
--                                       ends: 0 its descriptor goes on, 1 its group goes on, 2 last of
--                                       the group; veto, of the descriptor: 0 none, 1 alone, 2 quota;
--                                       take: 0 exactly one, 1 exactly, 2 up to, 3 always, 4 give back,
--                                       5 give back with a receipt
--            hits                       all takes but 0
--            needs                      take 3
--            at, used                   take 5: the receipt
-- or       ((chain × 2^16 + key) × 2^16 + groups) × 8 + 7: as many groups, each with the checks of the chain,
--          on that key and those behind it, of which the call asks nothing else; or, with 0, one group on
--          that key and the others that follow. Every check takes exactly its hits from a fixed window and
--          can refuse alone, and those of a group have different counters. The hits are at least one and
--          at most the capacity, which is below the window's microseconds.
-- Replies with the time, and for each check either
--            used × 4 + (2 if charged) + (1 if allowed), of a fixed window in the present, or
--            -1 - (granted × 2 + (1 if allowed)), remaining (below zero: by how much usage has passed the
--            limit), microseconds until the reset, microseconds until a retry can pass (-1 for never),
--            and at and used of the receipt,
--          and then the position in KEYS of each key whose value cannot be a state: it counted as absent, and
--          is replaced when it is charged.
--
-- Every key is read once at most. It is written if a check charged it or gave back something, so a refusal,
-- a peek and a refund of nothing write nothing, unless a key that refuses has no expiry: it gets one.

local call, try, format, type = redis.call, redis.pcall, string.format, type
local KEYS, ARGV = KEYS, ARGV
local algorithms = {
    fixed_window, sliding_window_log, sliding_window_counter, token_bucket, gcra,
}

-- The longest life of a key, in microseconds.
local EXPIRY_MAX = 2 ^ 53 - 1

-- The most hits of a fixed window that are told in short.
local SHORT_MAX = 2 ^ 50

-- Digits of a point in time of our age.
local DIGITS = 16

-- The most keys read at once: what unpack can lay on Lua's stack is bounded.
local READ_MAX = 4000

local EXACTLY_ONE, EXACTLY, UP_TO, ALWAYS, GIVE_BACK = 0, 1, 2, 3, 4
local CHAIN, GROUPS = 6, 7

-- The queue behind a log: a list of the sum before the first entry, and of the time and the sum of each.
local open_queue
if sliding_window_log then
    -- The most elements pushed at once: what unpack can lay on Lua's stack is bounded.
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

    -- Time and sum of the entries from one number to another, by turns.
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

    -- The sum before the first entry, and time and sum of the last.
    local function ends(queue)
        if queue.count == 0 then
            return 0, 0, 0
        end
        return queue.head[1], entry(queue, queue.count)
    end

    -- Removes all entries but those from one number to another. What is left as the sum before them is
    -- that of the entry before, unless another is given.
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

    -- Takes what is stored for something else than a log, to be replaced.
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

-- A number as text. Redis would write a number with more care, which takes it longer.
local function text(number)
    return format('%.0f', number)
end

-- Milliseconds that a key lives, as text.
local function expiry(micros)
    return text(math.ceil(math.min(micros, EXPIRY_MAX) / 1000))
end

-- Adds to the number under a key. Returns the sum, or an error if there is no number.
local function grow(key, by)
    if by == 1 then
        return try('INCR', key)
    end
    return try('INCRBY', key, text(by))
end

local limits = {}
local position, first_check = 3, ARGV[2] + 0

-- A chain: of each check the limit, the hits, the start of the window, and the most that can be stored for
-- the hits to fit, as text.
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
            gain = ARGV[position + 2] + 0,
            tick = ARGV[position + 3] + 0,
        }
        position = position + 4
    else
        -- GCRA's is its cost.
        local span = ARGV[position + 1] + 0
        limits[position] =
            { algorithm = algorithms[code], capacity = rest, window = span, cost = span }
        position = position + 2
    end
end

-- What is stored under each key that is no log.
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

-- By key: the state, whether it is stored, how many charges and refunds of this call stand, and the limit of the
-- last check.
local states, exists, changes, last_limits = {}, {}, {}, {}

-- By key: whether what is stored cannot be a state, and whether the key is known to expire.
local unusable, expires = {}, {}

-- By key: the hits used of a counter that chains ask several times, once they have charged it. It is stored so.
local used_of = {}

-- The state of a counter that was never used, in place of what was found.
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
        unusable[key] = true
        state = absent(found, limit)
    end
    states[key] = state
    changes[key] = 0
    return state
end

local answers, last_answer = { now }, 1

-- The checks of the group so far, of each: key, limit, time, take; and six numbers, as they are told at length
-- but for the first, which is granted × 2 + (1 if allowed).
local asked = 0
local keys_of, limits_of, times_of, takes_of, told = {}, {}, {}, {}, {}
local of_descriptor, over = 1, false
local alone_over, quota, quota_over = false, 0, 0

-- Fills in what the counter of a check has left.
local function describe(check, limit, state, time)
    local algorithm = limit.algorithm
    told[6 * check - 4] = algorithm.available(state, limit, time)
    told[6 * check - 3] = (algorithm.until_reset or algorithm.reset_after)(state, limit, time)
end

-- Gives back, newest first, what the checks from one on took on condition, and says what is left. Another limit may
-- have put a state into units of its own.
local function undo(first)
    for check = asked, first, -1 do
        local verdict = told[6 * check - 5]
        if takes_of[check] <= UP_TO and verdict > 1 then
            local key, limit = keys_of[check], limits_of[check]
            local allowed = verdict % 2
            local granted = (verdict - allowed) / 2
            local at, used = told[6 * check - 1], told[6 * check]
            limit.algorithm.advance(states[key], limit, times_of[check])
            limit.algorithm.give_back(states[key], limit, times_of[check], granted, at, used)
            changes[key] = changes[key] - 1
            told[6 * check - 5] = allowed
        end
    end
    for check = first, asked do
        if takes_of[check] <= UP_TO then
            local limit, state, time = limits_of[check], states[keys_of[check]], times_of[check]
            limit.algorithm.advance(state, limit, time)
            describe(check, limit, state, time)
        end
    end
end

-- Whether the state that was found under a key can be the reason for a refusal. All that these scripts write
-- expires; what does not could refuse for ever. It is given an expiry if it is used no further than to the limit
-- and in the present, else it cannot be a state.
local function may_refuse(key, limit, state, time)
    if not exists[key] or expires[key] or changes[key] > 0 or try('PTTL', KEYS[key]) ~= -1 then
        expires[key] = true
        return true
    end
    expires[key] = true
    local algorithm = limit.algorithm
    if time == now and algorithm.available(state, limit, time) >= 0 then
        call('PEXPIRE', KEYS[key], expiry(algorithm.reset_after(state, limit, time)))
        return true
    end
    unusable[key] = true
    states[key] = absent(state.queue, limit)
    return false
end

-- Asks one counter and charges it where the check says so.
local ask
function ask(key, limit, take, hits, needs, at, used)
    local algorithm = limit.algorithm
    local state = states[key] or open(key, limit)
    local time = algorithm.advance(state, limit, now)
    local allowed, granted = true, 0
    if take >= GIVE_BACK then
        if algorithm.give_back(state, limit, time, hits, at, used) then
            changes[key] = changes[key] + 1
        end
    else
        local available = algorithm.available(state, limit, time)
        if take == ALWAYS then
            allowed, granted = needs <= available, hits
        elseif take == UP_TO then
            needs = 1
            granted = available > 0 and math.min(hits, available) or 0
            allowed = granted > 0 or hits == 0
        else
            needs = hits > 0 and hits or 1
            allowed = needs <= available
            granted = allowed and hits or 0
        end
    end

    -- What would let a refused check pass is asked before the charge: the wait is for these hits, once.
    local retry_after = 0
    if not allowed then
        if not may_refuse(key, limit, state, time) then
            return ask(key, limit, take, hits, needs, at, used)
        end
        over = true
        needs = needs > 0 and needs or 1
        retry_after = needs > limit.capacity and -1 or algorithm.retry_after(state, limit, time, needs)
    end
    at, used = 0, 0
    if granted > 0 then
        at, used = algorithm.take(state, limit, time, granted)
        changes[key] = changes[key] + 1
    end
    last_limits[key] = limit
    asked = asked + 1
    keys_of[asked], limits_of[asked], times_of[asked], takes_of[asked] = key, limit, time, take
    told[6 * asked - 5] = granted * 2 + (allowed and 1 or 0)
    describe(asked, limit, state, time)
    told[6 * asked - 2] = retry_after
    told[6 * asked - 1] = at
    told[6 * asked] = used
end

-- Answers a check of the group.
local function answer(check)
    local limit, verdict, available = limits_of[check], told[6 * check - 5], told[6 * check - 4]
    if limit.algorithm == fixed_window and times_of[check] == now and takes_of[check] ~= UP_TO then
        local used = limit.capacity - available
        if used < SHORT_MAX then
            last_answer = last_answer + 1
            answers[last_answer] = used * 4 + verdict % 2 + (verdict > 1 and 2 or 0)
            return
        end
    end
    answers[last_answer + 1] = -1 - verdict
    for place = 2, 6 do
        answers[last_answer + place] = told[6 * check - 6 + place]
    end
    last_answer = last_answer + 6
end

-- Ends a descriptor, and the group if it is the last.
local function close(veto, last)
    if over then
        undo(of_descriptor)
    end
    if veto == 1 then
        alone_over = alone_over or over
    elseif veto == 2 then
        quota = quota + 1
        quota_over = quota_over + (over and 1 or 0)
    end
    of_descriptor, over = asked + 1, false
    if last then
        if alone_over or quota > 0 and quota_over == quota then
            undo(1)
        end
        for check = 1, asked do
            answer(check)
        end
        asked, of_descriptor = 0, 1
        alone_over, quota, quota_over = false, 0, 0
    end
end

-- Refuses a group of a chain on these keys if one of its counters has no room. Returns false, and has done
-- nothing, if that takes a closer look: not all of them are stored as numbers, one is ahead of the present, or
-- has a state by now.
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

-- Settles groups of a chain: one on these keys, or several, the first on the keys behind one. Stored numbers
-- are compared as texts, because to read them takes longer than all the rest.
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
                    local sum = wanted == 1 and try('INCR', name) or grow(name, wanted)
                    if type(sum) == 'number' then
                        used = sum - starts[place]
                    else
                        unusable[key] = true
                    end
                end
                if used < wanted then
                    -- There was none, or it was of an earlier window.
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
                    ask(key, chain.limits[place], EXACTLY, hits[place])
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
    local take = word % 8
    word = (word - take) / 8
    if take == GROUPS then
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
        local veto = word % 4
        word = (word - veto) / 4
        local ends = word % 4
        word = (word - ends) / 4
        local key = word % 65536
        local hits, needs, at, used = 1, nil, nil, nil
        if take > EXACTLY_ONE then
            hits = ARGV[position] + 0
            position = position + 1
        end
        if take == ALWAYS then
            needs = ARGV[position] + 0
            position = position + 1
        elseif take > GIVE_BACK then
            at, used = ARGV[position] + 0, ARGV[position + 1] + 0
            position = position + 2
        end
        ask(key, limits[(word - key) / 65536], take, hits, needs, at, used)
        if ends > 0 then
            close(veto, ends == 2)
        end
    end
end

for key, state in pairs(states) do
    local queue = state.queue
    if queue and queue.broken and queue.count > 0 then
        -- Found out on the way.
        unusable[key] = true
        call('DEL', KEYS[key])
    elseif changes[key] > 0 then
        local limit = last_limits[key]
        local algorithm = limit.algorithm
        local time = algorithm.advance(state, limit, now)
        local reset_after = algorithm.reset_after(state, limit, time)
        if reset_after == 0 then
            if exists[key] then
                call('DEL', KEYS[key])
            end
        elseif algorithm == sliding_window_log then
            algorithm.write(state)
            call('PEXPIRE', KEYS[key], expiry(time - now + reset_after))
        else
            local value, growth = algorithm.write(state, limit)
            if growth then
                grow(KEYS[key], growth)
            else
                call('SET', KEYS[key], value, 'PX', expiry(time - now + reset_after))
            end
        end
    end
end

for key in pairs(unusable) do
    last_answer = last_answer + 1
    answers[last_answer] = key
end

return answers
