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
-- then     the checks, in order, each of:
--            word                       ((limit × 2^16 + key) × 4 + ends) × 32 + veto × 8 + take, where
--                                       limit is the limit's position in ARGV and key that in KEYS;
--                                       ends: 0 its descriptor goes on, 1 its group goes on, 2 last of
--                                       the group; veto, of the descriptor: 0 none, 1 alone, 2 quota;
--                                       take: 0 exactly, 1 up to, 2 always, 3 give back, 4 give back
--                                       with a receipt
--            hits
--            needs                      take 2
--            at, used                   take 4: the receipt
-- Replies with six integers per check: granted × 2 + (1 if allowed), remaining (below zero: by how much usage
-- has passed the limit), microseconds until the reset, microseconds until a retry can pass (-1 for never), and at and used of the receipt.
--
-- Every key is read once at most, and written at the end if a check charged it or gave back something.
-- So a refusal, a peek and a refund of nothing write nothing.

local call = redis.call
local algorithms = {
    fixed_window, sliding_window_log, sliding_window_counter, token_bucket, gcra,
}

-- The last point in time that can be told.
local TIME_MAX = 2 ^ 52 - 1

-- The longest life of a key, in microseconds.
local EXPIRY_MAX = 2 ^ 53 - 1

local UP_TO, ALWAYS, GIVE_BACK = 1, 2, 3

-- The queue behind a log: a list of the sum before the first entry, and of the time and the sum of each.
local open_queue
if sliding_window_log then
    -- The most elements pushed at once: what unpack can lay on Lua's stack is bounded.
    local PUSH_MAX = 4000

    local function elements(queue, from, to)
        local list = call('LRANGE', queue.key, from, to)
        for position, element in ipairs(list) do
            list[position] = element + 0
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
        if queue.count > 0 then
            call('DEL', queue.key)
        end
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
        local length = call('LLEN', key)
        local queue = {
            key = key,
            count = length > 0 and (length - 1) / 2 or 0,
            entries = entries,
            entry = entry,
            ends = ends,
            keep = keep,
            clear = clear,
            push = push,
        }
        queue.head = length > 0 and elements(queue, 0, 4) or {}
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

local limits = {}
local position, checks = 3, ARGV[2] + 0
while position < checks do
    local number = ARGV[position] + 0
    local code = number % 8
    local limit = { algorithm = algorithms[code], capacity = (number - code) / 8 }
    limits[position] = limit
    if code <= 3 then
        limit.window = ARGV[position + 1] + 0
        position = position + 2
    else
        limit.cost = ARGV[position + 1] + 0
        position = position + 2
        if code == 4 then
            limit.gain = ARGV[position] + 0
            limit.tick = ARGV[position + 1] + 0
            position = position + 2
        end
    end
end

local values
local counters = {}

local function open(key, limit)
    local stored
    if limit.algorithm == sliding_window_log then
        stored = open_queue(KEYS[key])
    else
        values = values or call('MGET', unpack(KEYS))
        stored = values[key]
    end
    local counter = { state = limit.algorithm.read(stored, limit), changes = 0 }
    counter.exists = stored and stored.count ~= 0
    counters[key] = counter
    return counter
end

local answers = {}
local asked = {}

-- Fills in what the counter of an answer has left.
local function describe(answer, limit, state, time)
    answers[answer + 2] = limit.algorithm.available(state, limit, time)
    local until_reset = limit.algorithm.until_reset or limit.algorithm.reset_after
    answers[answer + 3] = until_reset(state, limit, time)
end

-- Gives back, newest first, what the checks from one on took on condition, and says what is left.
local function undo(first, last)
    for check = last, first, -1 do
        local it = asked[check]
        local answer = 6 * check - 6
        local verdict = answers[answer + 1]
        if it and verdict > 1 then
            local allowed = verdict % 2
            local granted = (verdict - allowed) / 2
            local at, used = answers[answer + 5], answers[answer + 6]
            it.limit.algorithm.give_back(it.counter.state, it.limit, it.time, granted, at, used)
            it.counter.changes = it.counter.changes - 1
            answers[answer + 1] = allowed
        end
    end
    for check = first, last do
        local it = asked[check]
        if it then
            describe(6 * check - 6, it.limit, it.counter.state, it.time)
        end
    end
end

local check = 0
local of_group, of_descriptor = 1, 1
local over, alone_over, quota, quota_over = false, false, 0, 0
while position <= #ARGV do
    local word = ARGV[position] + 0
    local hits = ARGV[position + 1] + 0
    position = position + 2
    local take = word % 8
    word = (word - take) / 8
    local veto = word % 4
    word = (word - veto) / 4
    local ends = word % 4
    word = (word - ends) / 4
    local key = word % 65536
    local limit = limits[(word - key) / 65536]
    local algorithm = limit.algorithm
    local counter = counters[key] or open(key, limit)
    local state = counter.state
    local time = algorithm.advance(state, limit, now)
    local available = algorithm.available(state, limit, time)
    local allowed, granted, needs
    if take >= GIVE_BACK then
        local at, used
        if take > GIVE_BACK then
            at, used = ARGV[position] + 0, ARGV[position + 1] + 0
            position = position + 2
        end
        if algorithm.give_back(state, limit, time, hits, at, used) then
            counter.changes = counter.changes + 1
        end
        allowed, granted = true, 0
    elseif take == ALWAYS then
        needs = ARGV[position] + 0
        position = position + 1
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

    -- What would let a refused check pass is asked before the charge: the wait is for these hits, once.
    local retry_after = 0
    if not allowed then
        over = true
        needs = needs > 0 and needs or 1
        retry_after = needs > limit.capacity and -1 or algorithm.retry_after(state, limit, time, needs)
    end
    local at, used = 0, 0
    if granted > 0 then
        at, used = algorithm.take(state, limit, time, granted)
        counter.changes = counter.changes + 1
    end
    counter.limit = limit
    local answer = 6 * check
    check = check + 1
    asked[check] = take <= UP_TO and { counter = counter, limit = limit, time = time }
    answers[answer + 1] = granted * 2 + (allowed and 1 or 0)
    describe(answer, limit, state, time)
    answers[answer + 4] = retry_after
    answers[answer + 5] = at
    answers[answer + 6] = used

    if ends > 0 then
        if over then
            undo(of_descriptor, check)
        end
        if veto == 1 then
            alone_over = alone_over or over
        elseif veto == 2 then
            quota = quota + 1
            quota_over = quota_over + (over and 1 or 0)
        end
        of_descriptor = check + 1
        over = false
    end
    if ends == 2 then
        if alone_over or quota > 0 and quota_over == quota then
            undo(of_group, check)
        end
        of_group = check + 1
        alone_over, quota, quota_over = false, 0, 0
    end
end

for key, counter in pairs(counters) do
    if counter.changes > 0 then
        local state, limit = counter.state, counter.limit
        local algorithm = limit.algorithm
        local time = algorithm.advance(state, limit, now)
        local reset_after = algorithm.reset_after(state, limit, time)
        local expiry = math.ceil(math.min(time - now + reset_after, EXPIRY_MAX) / 1000)
        if reset_after == 0 then
            if counter.exists then
                call('DEL', KEYS[key])
            end
        elseif algorithm == sliding_window_log then
            algorithm.write(state)
            call('PEXPIRE', KEYS[key], expiry)
        else
            call('SET', KEYS[key], algorithm.write(state, limit), 'PX', expiry)
        end
    end
end

return answers
