-- Settles the checks of one call against the counters in Redis, as server/core/src/settle.rs does in memory.
--
-- The script is the concatenation of stored.lua, mul_div.lua if needed, the files of its algorithms, the files
-- in settle/ and this one. Only the files in settle/ and this one call Redis.
--
-- KEYS     the keys of the counters, each once.
-- ARGV[1]  the time in microseconds since the Unix epoch; 0 for Redis' own time.
-- ARGV[2]  the position of the first check in ARGV.
-- ARGV[3…] the limits and chains. A chain is the list of limits and hits of a group, so that many groups can
--          refer to it. It comes after its limits. Each limit has:
--            capacity × 8 + algorithm   position in `algorithms`: 1 fixed_window, 2 sliding_window_log,
--                                       3 sliding_window_counter, 4 token_bucket, 5 gcra
--            window                     1 to 3: microseconds
--            cost, refill_units,
--            refill_interval            4
--            cost                       5
--          Each chain has:
--            length × 8 + 6
--            limit × 2^33 + hits        for each check of the group
-- then     the groups, in order. Either check by check; each check has:
--            word                       ((limit × 2^16 + key) × 4 + ends) × 32 + scope × 8 + charge:
--                                       limit: position of the limit in ARGV; key: position in KEYS;
--                                       ends: 0 the next check is of the same descriptor, 1 of the
--                                       same group, 2 of another group;
--                                       scope of the descriptor's refusal: 0 none, 1 request, 2 quota;
--                                       charge: 0 one hit if allowed, 1 if allowed, 2 always,
--                                       3 refund, 4 refund with a receipt
--            hits                       for all charges except 0
--            needs                      for charge 2
--            at, used                   for charge 4: the receipt
--          or as groups of a chain:
--            word                       ((chain × 2^16 + key) × 2^16 + groups) × 8 + 7:
--                                       chain: position of the chain in ARGV;
--                                       groups > 0: number of groups, on consecutive keys from key on,
--                                       which no other check uses;
--                                       groups = 0: one group, on key and the keys that follow
--            other keys                 if groups = 0: the positions in KEYS after the first one
--          The checks of a chain are on different fixed windows, charge their hits if allowed, and refuse the
--          request. Hits are at least 1 and at most the capacity, which is below the window's microseconds.
-- Replies with the time, and for each check either
--            used × 4 + (2 if charged) + (1 if allowed), for a current fixed window, or
--            -1 - (charged × 2 + (1 if allowed)), remaining (below zero: by how much usage exceeds the
--            limit), microseconds until the reset, microseconds until a retry can pass (-1 for never),
--            and at and used of the receipt,
--          and then the position in KEYS of each key whose value is not a valid state: its counter is treated as
--          unused, and the value is replaced when the counter is charged.
--
-- A key is written only if a check charged or refunded hits. A refusal, a peek and a refund of no hits do not
-- write, with two exceptions: a key without expiry whose counter refuses gets an expiry, and a log with an
-- element that is not a number is deleted.

-- Settles the groups.
local last = #ARGV
while position <= last do
    local word = ARGV[position] + 0
    position = position + 1
    local code = word % 8
    word = (word - code) / 8
    if code == GROUPS then
        if not values then
            read_values()
        end
        local groups = word % 65536
        word = (word - groups) / 65536
        local key = word % 65536
        local chain = definitions[(word - key) / 65536]
        if groups > 0 then
            settle_chain(chain, nil, key - 1, groups)
        else
            local keys = { key }
            for index = 2, #chain.largest do
                keys[index] = ARGV[position] + 0
                position = position + 1
            end
            settle_chain(chain, keys, 0, 1)
        end
    else
        local scope = word % 4
        word = (word - scope) / 4
        local ends = word % 4
        word = (word - ends) / 4
        local key = word % 65536
        local hits, needs, at, used = 1, nil, nil, nil
        if code > IF_ALLOWED_ONE then
            hits = ARGV[position] + 0
            position = position + 1
        end
        if code == ALWAYS then
            needs = ARGV[position] + 0
            position = position + 1
        elseif code > REFUND then
            at, used = ARGV[position] + 0, ARGV[position + 1] + 0
            position = position + 2
        end
        settle_check(key, definitions[(word - key) / 65536], code, hits, needs, at, used)
        if ends > 0 then
            end_descriptor(scope, ends == 2)
        end
    end
end

-- Writes the states that have changed.
for key, state in pairs(states) do
    local queue = state.queue
    if queue and queue.invalid and queue.count > 0 then
        -- An element of the log that was read after the state was opened is not a number.
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

-- Reports the keys with invalid values.
for key in pairs(invalid) do
    last_answer = last_answer + 1
    answers[last_answer] = key
end

return answers
