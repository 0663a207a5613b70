-- What CBOR has and Lua has not: null, byte strings, opaque items, and tables that know if they are arrays or maps.
--
-- A table says what it is under the private key KIND. Only this code holds that key: functions from outside cannot
-- name it, and the library's pairs and next pass over it. The private keys are functions, because comparing tables
-- with them could run an __eq from outside. Byte strings and opaque items (tags, simple values, integers
-- beyond 64 bits, odd map keys) are sealed tables with their bytes under RAW. Equal ones are the same table, so that ==
-- and table keys work on them.

local setmetatable, next, type, rawget, error = setmetatable, next, type, rawget, error
local math_type, sort = math.type, table.sort

local function KIND() end
local function RAW() end
local ARRAY, MAP, NULL, BYTES, OPAQUE = "array", "map", "null", "bytes", "opaque"

local function sealed(kind)
    local function refuse()
        error("attempt to index a " .. kind .. " value", 2)
    end
    return {__name = kind, __metatable = false, __index = refuse, __newindex = refuse}
end

-- Makes sealed tables of a kind; equal bytes give the same table for as long as anybody holds it.
local function maker(kind)
    local metatable = sealed(kind)
    local known = setmetatable({}, {__mode = "v"})
    metatable.__len = function(value) return #value[RAW] end
    return function(raw)
        local value = known[raw]
        if value == nil then
            value = setmetatable({[KIND] = kind, [RAW] = raw}, metatable)
            known[raw] = value
        end
        return value
    end
end

local null = setmetatable({[KIND] = NULL, [RAW] = ""}, sealed(NULL))

-- Null, bytes or opaque; false for every other value.
local function sealed_kind(value)
    local kind = type(value) == "table" and rawget(value, KIND)
    return kind and kind ~= ARRAY and kind ~= MAP and kind
end

local RANKS = {
    number = 1, string = 2, boolean = 3, [NULL] = 4, [BYTES] = 5, [OPAQUE] = 6, table = 7, ["function"] = 8, thread = 9,
}
local UNORDERED = 7

local function rank(key)
    return RANKS[sealed_kind(key) or type(key)]
end

local function is_ordered(key)
    return rank(key) < UNORDERED
end

-- The order of keys: numbers, text, false and true, null, bytes, opaque items, then tables, functions and coroutines,
-- which have no order among themselves: Lua knows them by their addresses.
local function before(a, b)
    local first, second = rank(a), rank(b)
    if first ~= second then return first < second end
    if first <= 2 then return a < b end
    if first == 3 then return b and not a end
    return first < UNORDERED and a[RAW] < b[RAW]
end

local function refuse_unordered(name, key)
    error(name .. " has no order for two keys of type " .. type(key) .. "; use numbers or text as keys", 3)
end

-- The keys of a table in their order, how many there are, and whether all are text. Lua's own order differs from
-- process to process.
local function sorted_keys(value)
    local keys, count, texts = {}, 0, true
    for key in next, value do
        if key ~= KIND then
            count = count + 1
            keys[count] = key
            texts = texts and type(key) == "string"
        end
    end
    if texts then sort(keys) else sort(keys, before) end
    return keys, count, texts
end

-- How many keys a table has and the highest of them, if all are integers from 1 on; otherwise nil.
local function indices(value)
    local count, highest = 0, 0
    for key in next, value do
        if key ~= KIND then
            if math_type(key) ~= "integer" or key < 1 then return nil end
            count = count + 1
            if key > highest then highest = key end
        end
    end
    return count, highest
end

return {
    KIND = KIND, RAW = RAW, ARRAY = ARRAY, MAP = MAP, NULL = NULL, BYTES = BYTES, OPAQUE = OPAQUE,
    null = null, bytes = maker(BYTES), opaque = maker(OPAQUE),
    sealed_kind = sealed_kind, before = before, is_ordered = is_ordered, refuse_unordered = refuse_unordered,
    sorted_keys = sorted_keys, indices = indices,
}
