-- Lua values to CBOR. Equal values give equal bytes: map keys come in their order, numbers in their shortest integer
-- form or as 64-bit floats, NaN in one form only.
--
-- Tables are read raw: no metamethod of theirs runs here, so nothing here can run for ever.

local values, skip, depth_max, bytes_max, items_max = ...
local KIND, RAW = values.KIND, values.RAW
local ARRAY, MAP, NULL, BYTES, OPAQUE = values.ARRAY, values.MAP, values.NULL, values.BYTES, values.OPAQUE
local indices, sorted_keys = values.indices, values.sorted_keys
local pack, char, concat, utf8_len = string.pack, string.char, table.concat, utf8.len
local type, rawget, pcall, error, math_type = type, rawget, pcall, error, math.type

local put_value
local parts, count, size, items

local CHARS = {}
for code = 0, 255 do
    CHARS[code] = char(code)
end

local function put(part)
    size = size + #part
    if size > bytes_max then error("the result takes more than " .. bytes_max .. " bytes", 0) end
    count = count + 1
    parts[count] = part
end

local function head(major, number)
    if number < 24 then return CHARS[major + number] end
    if number < 0x100 then return pack(">BB", major + 24, number) end
    if number < 0x10000 then return pack(">BI2", major + 25, number) end
    if number < 0x100000000 then return pack(">BI4", major + 26, number) end
    return pack(">BI8", major + 27, number)
end

local function put_number(value)
    if math_type(value) == "float" then
        put(value == value and pack(">Bd", 0xfb, value) or "\xf9\x7e\x00")
    elseif value >= 0 then
        put(head(0x00, value))
    else
        put(head(0x20, ~value))
    end
end

-- A string that is not UTF-8 cannot be text.
local function put_string(value)
    put(head(utf8_len(value) and 0x60 or 0x40, #value))
    put(value)
end

local function count_items(number)
    items = items + number
    if items > items_max then error("the result has more than " .. items_max .. " items", 0) end
end

local function put_array(value, length, depth)
    count_items(length)
    put(head(0x80, length))
    for index = 1, length do
        local item = rawget(value, index)
        if item == nil then put("\xf6") else put_value(item, depth + 1) end
    end
end

local function put_key(key, depth)
    if type(key) == "table" then
        local kind = rawget(key, KIND)
        if kind == nil or kind == ARRAY or kind == MAP then error("a table cannot be the key of a map", 0) end
    end
    put_value(key, depth)
end

local function put_map(value, depth)
    local keys, length = sorted_keys(value)
    count_items(2 * length)
    put(head(0xa0, length))
    for index = 1, length do
        local key = keys[index]
        if type(key) == "string" then put_string(key) else put_key(key, depth + 1) end
        put_value(value[key], depth + 1)
    end
end

local function refuse_depth()
    error("the result is nested more than " .. depth_max .. " deep, or in itself", 0)
end

-- What was a tag or an odd key in a message may lie deeper in a result than it did there.
local function put_opaque(raw, depth)
    if not pcall(skip, raw, 1, depth) then refuse_depth() end
    put(raw)
end

-- An array, marked or not, is one while its keys are; where a marked one has gaps, there is null.
local function put_table(value, depth)
    local kind = rawget(value, KIND)
    if kind == NULL then return put("\xf6") end
    if kind == BYTES then
        put(head(0x40, #value[RAW]))
        return put(value[RAW])
    end
    if kind == OPAQUE then return put_opaque(value[RAW], depth) end
    if depth == depth_max then refuse_depth() end
    local present, highest
    if kind ~= MAP then present, highest = indices(value) end
    if present and (kind == ARRAY or present == highest) then return put_array(value, highest, depth) end
    return put_map(value, depth)
end

local function put_boolean(value)
    put(value and "\xf5" or "\xf4")
end

local PUT = {string = put_string, number = put_number, table = put_table, boolean = put_boolean}

function put_value(value, depth)
    local put_it = PUT[type(value)]
    if put_it == nil then error("a " .. type(value) .. " has no place in CBOR", 0) end
    return put_it(value, depth)
end

-- The CBOR of a value; nil is null. Raises a sentence about what has no place in it.
return function(value)
    parts, count, size, items = {}, 0, 0, 0
    if value == nil then return "\xf6" end
    put_value(value, 0)
    return concat(parts, "", 1, count)
end
