-- CBOR to Lua values. The hot loop of every iterator, and long where that makes it faster: `make bench` measures it.
--
-- Messages are well-formed when they come here; what is not raises an error all the same, and never reads on for ever.
-- Of keys that are in a map twice, the last counts.

local values, depth_max = ...
local KIND, ARRAY, MAP = values.KIND, values.ARRAY, values.MAP
local null, bytes, opaque = values.null, values.bytes, values.opaque
local byte, sub, unpack, concat, math_type = string.byte, string.sub, string.unpack, table.concat, math.type

local decode, skip

-- The number in an item's head, and where its content begins. nil: indefinite length, or above 2^63-1.
local function argument(data, at, first)
    local info = first & 0x1f
    if info < 24 then return info, at + 1 end
    if info == 24 then return byte(data, at + 1), at + 2 end
    if info == 25 then return unpack(">I2", data, at + 1) end
    if info == 26 then return unpack(">I4", data, at + 1) end
    if info == 27 then
        local number = unpack(">i8", data, at + 1)
        return number >= 0 and number or nil, at + 9
    end
    if info == 31 and first >= 0x40 and first < 0xc0 then return nil, at + 1 end
    error("a reserved head")
end

-- Lengths that lie would lead beyond the data, or wrap around.
local function length(data, at, first)
    local number, start = argument(data, at, first)
    if number and number > #data then error("a length beyond the end") end
    if number == nil and first & 0x1f ~= 31 then error("a length beyond the end") end
    return number, start
end

local function unsigned(data, at, first)
    local number, after = argument(data, at, first)
    return number or opaque(sub(data, at, after - 1)), after
end

local function negative(data, at, first)
    local number, after = argument(data, at, first)
    return number and ~number or opaque(sub(data, at, after - 1)), after
end

local function chunks(data, at, kind)
    local parts = {}
    local first = byte(data, at)
    while first ~= 0xff do
        if first & 0xe0 ~= kind or first & 0x1f == 31 then error("a chunk of another kind") end
        local size, start = length(data, at, first)
        parts[#parts + 1] = sub(data, start, start + size - 1)
        at = start + size
        first = byte(data, at)
    end
    return concat(parts), at + 1
end

local function text(data, at, first)
    local size, start = length(data, at, first)
    if size == nil then return chunks(data, start, 0x60) end
    return sub(data, start, start + size - 1), start + size
end

local function byte_string(data, at, first)
    local size, start = length(data, at, first)
    if size == nil then
        local joined, after = chunks(data, start, 0x40)
        return bytes(joined), after
    end
    return bytes(sub(data, start, start + size - 1)), start + size
end

local function array(data, at, first, depth)
    local count, start = length(data, at, first)
    if depth == depth_max then error("too deep") end
    local items, index = {[KIND] = ARRAY}, 0
    at = start
    while index ~= count do
        first = byte(data, at)
        if first == 0xff and count == nil then return items, at + 1 end
        index = index + 1
        if first < 0x18 then
            items[index], at = first, at + 1
        else
            items[index], at = decode[first](data, at, first, depth + 1)
        end
    end
    return items, at
end

-- A key as Lua can hold it. Lua takes 1.0 for 1, compares tables by identity, and has no NaN among its keys.
local function odd_key(data, at, first, depth)
    local kind = first & 0xe0
    if kind == 0x80 or kind == 0xa0 then
        local after = skip(data, at, depth + 1)
        return opaque(sub(data, at, after - 1)), after
    end
    local key, after = decode[first](data, at, first, depth + 1)
    if math_type(key) == "float" and (key ~= key or key % 1 == 0) then
        key = opaque(sub(data, at, after - 1))
    end
    return key, after
end

-- A table made with room for as many keys is not made larger key by key.
local function room(count)
    if count == nil or count < 4 or count > 15 then return {[KIND] = MAP} end
    if count < 8 then return {[KIND] = MAP, a = nil, b = nil, c = nil, d = nil, e = nil, f = nil, g = nil} end
    return {
        [KIND] = MAP, a = nil, b = nil, c = nil, d = nil, e = nil, f = nil, g = nil,
        h = nil, i = nil, j = nil, k = nil, l = nil, m = nil, n = nil, o = nil,
    }
end

local function map(data, at, first, depth)
    local count, start = length(data, at, first)
    if depth == depth_max then error("too deep") end
    local items, index, key = room(count), 0, nil
    at = start
    while index ~= count do
        first = byte(data, at)
        if first == 0xff and count == nil then return items, at + 1 end
        index = index + 1
        -- Short text is what most keys and many values are.
        if first >= 0x60 and first < 0x78 then
            local after = at + first - 0x5f
            key, at = sub(data, at + 1, after - 1), after
        else
            key, at = odd_key(data, at, first, depth)
        end
        first = byte(data, at)
        if first < 0x18 then
            items[key], at = first, at + 1
        elseif first >= 0x60 and first < 0x78 then
            local after = at + first - 0x5f
            items[key], at = sub(data, at + 1, after - 1), after
        else
            items[key], at = decode[first](data, at, first, depth + 1)
        end
    end
    return items, at
end

-- Where an item ends.
function skip(data, at, depth)
    local first = byte(data, at)
    local kind = first & 0xe0
    if kind ~= 0x80 and kind ~= 0xa0 and kind ~= 0xc0 then
        local _, after = decode[first](data, at, first, depth)
        return after
    end
    if depth == depth_max then error("too deep") end
    if kind == 0xc0 then
        local _, start = argument(data, at, first)
        return skip(data, start, depth + 1)
    end
    local count, start = length(data, at, first)
    at = start
    while count ~= 0 do
        if count == nil and byte(data, at) == 0xff then return at + 1 end
        at = skip(data, at, depth + 1)
        if kind == 0xa0 then at = skip(data, at, depth + 1) end
        count = count and count - 1
    end
    return at
end

local function tag(data, at, _, depth)
    local after = skip(data, at, depth)
    return opaque(sub(data, at, after - 1)), after
end

local function half(data, at)
    local bits = unpack(">I2", data, at + 1)
    local exponent, fraction = bits >> 10 & 0x1f, bits & 0x3ff
    local number
    if exponent == 31 then
        number = fraction == 0 and 1 / 0 or 0 / 0
    elseif exponent == 0 then
        number = fraction * 2.0 ^ -24
    else
        number = (fraction + 1024) * 2.0 ^ (exponent - 25)
    end
    return bits & 0x8000 == 0 and number or -number, at + 3
end

local function special(data, at, first)
    if first == 0xfb then return unpack(">d", data, at + 1) end
    if first == 0xfa then return unpack(">f", data, at + 1) end
    if first == 0xf9 then return half(data, at) end
    if first == 0xf5 then return true, at + 1 end
    if first == 0xf4 then return false, at + 1 end
    if first == 0xf6 then return null, at + 1 end
    if first > 0xf8 or first == 0xf8 and byte(data, at + 1) < 32 then error("a reserved head") end
    local after = first == 0xf8 and at + 2 or at + 1
    return opaque(sub(data, at, after - 1)), after
end

local MAJOR = {unsigned, negative, byte_string, text, array, map, tag, special}

decode = {}
for first = 0, 255 do
    decode[first] = MAJOR[(first >> 5) + 1]
end

-- The value of a message: all of its bytes, one item.
local function decode_message(data)
    local first = byte(data, 1)
    local value, after = decode[first](data, 1, first, 0)
    if after ~= #data + 1 then error("not one item") end
    return value
end

return {decode = decode_message, skip = skip}
