-- What a function finds when it runs: the harmless parts of Lua's library, and null, array, map and bytes.
--
-- The rules: nothing here reaches outside Lua, keeps anything from one message to the next, or depends on addresses,
-- hash seeds, clocks or chance. Library tables are read-only. What could hide an endless loop from the deadline's hook
-- is missing (__gc, coroutine.close) or wrapped (pcall, coroutines).

local values, deadline = ...
local KIND, RAW, ARRAY, MAP = values.KIND, values.RAW, values.ARRAY, values.MAP
local BYTES = values.BYTES
local sealed_kind, sorted_keys, before = values.sealed_kind, values.sorted_keys, values.before
local is_final = deadline.is_final

local raw_type, raw_tostring, raw_next, raw_set, raw_get = type, tostring, next, rawset, rawget
local raw_setmetatable, raw_getmetatable = setmetatable, debug.getmetatable
local raw_create, raw_resume = coroutine.create, coroutine.resume
local find, gsub = string.find, string.gsub
local error, select, table_pack, table_unpack, move = error, select, table.pack, table.unpack, table.move
local math_type = math.type

-- Lua names them in its errors as they are called here.
local raw = {pcall = pcall, format = string.format, sort = table.sort}

local function type(value)
    return sealed_kind(value) or raw_type(value)
end

local function bad_argument(name, wanted, value)
    error("bad argument #1 to '" .. name .. "' (" .. wanted .. " expected, got " .. type(value) .. ")", 3)
end

-- Library tables, sealed values and the table of globals keep their metatables and their raw fields.
local function is_protected(value)
    local metatable = raw_getmetatable(value)
    return metatable ~= nil and raw_get(metatable, "__metatable") ~= nil
end

-- ------------------------------------------------------------------------------------------- errors and coroutines

-- Errors that this code raises name its lines, which change from version to version.
local function settle(ok, ...)
    if ok then return ok, ... end
    local problem = ...
    if is_final(problem) then error(problem, 0) end
    if raw_type(problem) == "string" then problem = gsub(problem, "^penstock:%d+: ", "") end
    return ok, problem
end

local function pcall(...)
    return settle(raw.pcall(...))
end

-- The handler runs after the error, not inside it: inside, the hook would be off.
local function handled(handler, ok, ...)
    if ok then return ok, ... end
    return false, select(2, pcall(handler, ...))
end

local function xpcall(body, handler, ...)
    return handled(handler, pcall(body, ...))
end

local function create(body)
    if raw_type(body) ~= "function" then bad_argument("create", "function", body) end
    local thread = raw_create(body)
    deadline.watch(thread)
    return thread
end

local function resume(thread, ...)
    if raw_type(thread) ~= "thread" then bad_argument("resume", "coroutine", thread) end
    deadline.count_resume()
    return settle(raw_resume(thread, ...))
end

local function unwrapped(ok, ...)
    if not ok then error(..., 0) end
    return ...
end

local function wrap(body)
    if raw_type(body) ~= "function" then bad_argument("wrap", "function", body) end
    local thread = create(body)
    return function(...)
        return unwrapped(resume(thread, ...))
    end
end

-- ------------------------------------------------------------------------------------------------------- tables

local function pairs(value)
    if type(value) ~= "table" then bad_argument("pairs", "table", value) end
    local metatable = raw_getmetatable(value)
    local own = metatable and raw_get(metatable, "__pairs")
    if own then
        local iterate, subject, first = own(value)
        return iterate, subject, first
    end
    local keys, count, texts = sorted_keys(value)
    local index = 0
    -- Those that have no order are the last ones, each type by itself.
    for at = texts and 0 or count, 2, -1 do
        if values.is_ordered(keys[at]) then break end
        if not before(keys[at - 1], keys[at]) then values.refuse_unordered("pairs", keys[at]) end
    end
    return function()
        local item
        repeat
            index = index + 1
            if keys[index] == nil then return nil end
            item = raw_get(value, keys[index])
        until item ~= nil
        return keys[index], item
    end, value, nil
end

local function next(value, after)
    if type(value) ~= "table" then bad_argument("next", "table", value) end
    if after ~= nil and not values.is_ordered(after) then
        error("next cannot go on from a " .. type(after) .. "; use pairs", 2)
    end
    local nearest, is_one = nil, true
    for key in raw_next, value do
        if key ~= KIND and (after == nil or before(after, key)) then
            if nearest == nil or before(key, nearest) then
                nearest, is_one = key, true
            elseif not before(nearest, key) then
                is_one = false
            end
        end
    end
    if not is_one then values.refuse_unordered("next", nearest) end
    if nearest ~= nil then return nearest, raw_get(value, nearest) end
    return nil
end

-- Under this key a metatable that is in use has the one that it was made from.
local function ORIGINAL() end

local function getmetatable(value)
    local metatable = raw_getmetatable(value)
    if metatable == nil then return nil end
    local instead = raw_get(metatable, "__metatable")
    if instead ~= nil then return instead end
    return raw_get(metatable, ORIGINAL)
end

-- A table gets a copy of its metatable that nobody else has: a __mode that is put in later would make it weak.
local function in_use(metatable)
    local made = {[ORIGINAL] = metatable}
    for key, item in raw_next, metatable do made[key] = item end
    return made
end

local function setmetatable(value, metatable)
    if type(value) ~= "table" then bad_argument("setmetatable", "table", value) end
    if metatable ~= nil and type(metatable) ~= "table" then
        error("bad argument #2 to 'setmetatable' (nil or table expected)", 2)
    end
    if is_protected(value) then error("cannot change a protected metatable", 2) end
    -- Both would show when the collector runs; a finalizer also runs where no hook can stop it.
    if metatable and (raw_get(metatable, "__gc") ~= nil or raw_get(metatable, "__mode") ~= nil) then
        error("__gc and __mode are not available", 2)
    end
    return raw_setmetatable(value, metatable and in_use(metatable))
end

local function rawset(value, key, item)
    if type(value) ~= "table" then bad_argument("rawset", "table", value) end
    if is_protected(value) then error("cannot change a protected table", 2) end
    return raw_set(value, key, item)
end

-- How many elements are sorted at one go where no hook can stop it, and the longest text that is compared there.
local RUN_ITEMS_MAX, RUN_BYTES_MAX = 32768, 256

-- Whether equal elements cannot be told apart, as 1 and 1.0 or the two zeros can be, and are compared in no time to
-- speak of.
local function is_plain(list, length)
    local kind = raw_type(list[1])
    if kind == "string" then
        for index = 1, length do
            local item = list[index]
            if raw_type(item) ~= "string" or #item > RUN_BYTES_MAX then return false end
        end
        return true
    end
    kind = math_type(list[1])
    for index = 1, length do
        local item = list[index]
        if math_type(item) ~= kind or kind == "float" and (item == 0 or item ~= item) then return false end
    end
    return kind ~= nil
end

-- Sorts plain elements in runs. However Lua does that, the same comes out.
local function sort_runs(list, length)
    for low = 1, length, RUN_ITEMS_MAX do
        local high = low + RUN_ITEMS_MAX - 1
        local run = move(list, low, high < length and high or length, 1, {})
        raw.sort(run)
        move(run, 1, #run, low, list)
    end
end

local function merge_plain(from, to, low, middle, high)
    local left, right = low, middle + 1
    for index = low, high do
        if left <= middle and (right > high or not (from[right] < from[left])) then
            to[index], left = from[left], left + 1
        else
            to[index], right = from[right], right + 1
        end
    end
end

local function merge(from, to, low, middle, high, less)
    local left, right = low, middle + 1
    for index = low, high do
        if left <= middle and (right > high or not less(from[right], from[left])) then
            to[index], left = from[left], left + 1
        else
            to[index], right = from[right], right + 1
        end
    end
end

-- A stable merge sort. Lua's own picks its pivots by the clock, which shows where elements compare as equal, where an
-- order contradicts itself, and in what order metamethods run.
local function sort(list, less)
    if type(list) ~= "table" then bad_argument("sort", "table", list) end
    if less ~= nil and raw_type(less) ~= "function" then error("bad argument #2 to 'sort' (function expected)", 2) end
    local length, width = #list, 1
    local from, to = {}, {}
    for index = 1, length do from[index] = list[index] end
    if less == nil and is_plain(from, length) then
        sort_runs(from, length)
        width = RUN_ITEMS_MAX
    end
    local merge = less and merge or merge_plain
    while width < length do
        for low = 1, length, 2 * width do
            local high = low + 2 * width - 1
            merge(from, to, low, low + width - 1, high < length and high or length, less)
        end
        from, to, width = to, from, 2 * width
    end
    for index = 1, length do list[index] = from[index] end
end

-- --------------------------------------------------------------------------------------------------------- text

local function tostring(value)
    local kind = type(value)
    if kind == "bytes" then return value[RAW] end
    if kind == "table" then
        local metatable = raw_getmetatable(value)
        local own = metatable and raw_get(metatable, "__tostring")
        if own then return own(value) end
    end
    if kind == "nil" or kind == "boolean" or kind == "number" or kind == "string" then return raw_tostring(value) end
    return kind
end

-- Lua's own would print addresses.
local function format(pattern, ...)
    if raw_type(pattern) == "string" and find(pattern, "p", 1, true) and
        find(gsub(pattern, "%%%%", ""), "%%[^%a]*p") then
        error("invalid conversion '%p' to 'format'", 2)
    end
    local arguments = table_pack(...)
    for index = 1, arguments.n do
        local kind = raw_type(arguments[index])
        if kind == "table" or kind == "function" or kind == "thread" then
            arguments[index] = tostring(arguments[index])
        end
    end
    return raw.format(pattern, table_unpack(arguments, 1, arguments.n))
end

-- -------------------------------------------------------------------------------------------------- kinds of value

local function plain(name, value)
    if value == nil then return {} end
    if type(value) ~= "table" or is_protected(value) then
        error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(value) .. ")", 3)
    end
    return value
end

local function array(value)
    value = plain("array", value)
    if not values.indices(value) then error("array() takes a table whose keys are 1, 2, 3 and so on", 2) end
    return raw_set(value, KIND, ARRAY)
end

local function map(value)
    return raw_set(plain("map", value), KIND, MAP)
end

local function bytes(value)
    if type(value) == BYTES then return value end
    if raw_type(value) ~= "string" then bad_argument("bytes", "string", value) end
    return values.bytes(value)
end

-- ------------------------------------------------------------------------------------------------- putting together

local function copy(original, without)
    local result = {}
    for name, value in raw_next, original do result[name] = value end
    for _, name in ipairs(without) do result[name] = nil end
    return result
end

local function read_only(contents)
    local function refuse()
        error("the library cannot be changed", 2)
    end
    return raw_setmetatable({}, {__index = contents, __newindex = refuse, __metatable = false})
end

local strings = copy(string, {"dump"})
strings.format = format
local tables = copy(table, {})
tables.sort = sort
local coroutines = {
    create = create, resume = resume, wrap = wrap, yield = coroutine.yield, status = coroutine.status,
    running = coroutine.running, isyieldable = coroutine.isyieldable,
}

-- ("x"):upper() finds its methods here.
local texts = raw_getmetatable("")
texts.__index = strings
texts.__metatable = false

return {
    assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs,
    pcall = pcall, rawequal = rawequal, rawget = raw_get, rawlen = rawlen, rawset = rawset, select = select,
    setmetatable = setmetatable, tonumber = tonumber, tostring = tostring, type = type, xpcall = xpcall,
    coroutine = read_only(coroutines), math = read_only(copy(math, {"random", "randomseed"})),
    string = read_only(strings), table = read_only(tables), utf8 = read_only(copy(utf8, {})),
    null = values.null, array = array, map = map, bytes = bytes,
}
