-- The stored queue of a sliding window log: a Redis list of the sum before the first entry, then time and sum of
-- each entry. Reads only the elements that are needed. `invalid` is set if the value is not such a list.
local open_queue
if sliding_window_log then
    -- The most elements pushed at once. Lua's stack bounds unpack.
    local PUSH_MAX = 4000

    -- The elements of the list at the positions `from` to `to`, as numbers.
    local function elements(queue, from, to)
        local list = call('LRANGE', queue.key, from, to)
        for position, element in ipairs(list) do
            local number = integer(element)
            queue.invalid = queue.invalid or not number
            list[position] = number or 0
        end
        return list
    end

    -- Times and sums, alternating, of the entries numbered `from` to `to`.
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

    -- Removes all entries except those numbered `from` to `to`. The sum before them is that of the entry
    -- before, or `base` if it is given.
    local function keep(queue, from, to, base)
        if from > 1 or to < queue.count then
            call('LTRIM', queue.key, 2 * (from - 1), 2 * to)
        end
        if base then
            call('LSET', queue.key, 0, base)
        end
    end

    -- Deletes the list.
    local function clear(queue)
        if queue.count > 0 or queue.invalid then
            call('DEL', queue.key)
        end
    end

    -- Marks the stored value as invalid, to be replaced.
    local function discard(queue)
        queue.invalid, queue.count, queue.head = true, 0, {}
    end

    -- Appends the elements of `list` from a position on.
    local function push(queue, list, from)
        while from <= #list do
            local to = math.min(#list, from + PUSH_MAX - 1)
            call('RPUSH', queue.key, unpack(list, from, to))
            from = to + 1
        end
    end

    open_queue = function(key)
        local length = try('LLEN', key)
        -- One sum before the first entry, and two numbers for each entry.
        local is_log = length == 0
            or type(length) == 'number' and length % 2 == 1 and length <= 2 * LOG_MAX + 1
        local queue = {
            key = key,
            count = is_log and length > 0 and (length - 1) / 2 or 0,
            invalid = not is_log,
            entries = entries,
            entry = entry,
            ends = ends,
            keep = keep,
            clear = clear,
            push = push,
            discard = discard,
        }
        queue.head = is_log and length > 0 and elements(queue, 0, 4) or {}
        if queue.invalid then
            discard(queue)
        end
        return queue
    end
end
