-- Runs one function over messages, one call each: decodes, runs, encodes, and says what went wrong.
--
-- A function is compiled once. Its globals, msg and acc are locals of its chunk, new for each message, so assigning
-- them or _ENV lasts for one message. The table of globals is made anew only after a function has written to it.

local values, decode, encode, deadline, library, depth_max, idle_kib_max = ...
local null = values.null
local pcall, load, type, setmetatable, rawset = pcall, load, type, setmetatable, rawset
local rawequal, collectgarbage = rawequal, collectgarbage
local gsub, sub, find = string.gsub, string.sub, string.find

-- On the function's own first line, so that line numbers in errors are the author's.
local PREFIX = "local _ENV, msg, acc = ...; "
local REASON_BYTES_MAX = 500

-- Answers of a step that are no result. The same numbers are in sandbox.py.
local FAILED, UNREADABLE, TIMED_OUT, NO_MEMORY = 1, 2, 3, 4
local READING, RUNNING, WRITING = "reading", "running", "writing"

local chunk, globals, written, phase, reason

local function set_global(environment, name, value)
    written = true
    rawset(environment, name, value)
end

local GLOBALS = {__index = library, __newindex = set_global, __metatable = false}

local function renew_globals()
    globals, written = setmetatable({}, GLOBALS), false
end

local function run(message, state)
    phase = READING
    local msg, acc = decode(message), nil
    if state then acc = decode(state) end
    phase = RUNNING
    deadline.start()
    local result = chunk(globals, msg, acc)
    deadline.stop()
    phase = WRITING
    return result
end

local function run_map(message)
    return encode(run(message))
end

local function run_filter(message)
    local result = run(message)
    -- Raw, because an __eq of the function's would run without a deadline.
    return result ~= nil and result ~= false and not rawequal(result, null)
end

-- nil stays nil: it is the accumulator before the first message.
local function run_reduce(message, state)
    local result = run(message, state)
    if result == nil then return nil end
    return encode(result)
end

local RUNS = {map = run_map, filter = run_filter, reduce = run_reduce}

-- Errors raised in the library name this code, which means nothing to the function's author.
local function describe(problem)
    if type(problem) == "number" then return problem .. "" end
    if type(problem) ~= "string" then return "an error of type " .. library.type(problem) end
    return sub(gsub(sub(problem, 1, 2 * REASON_BYTES_MAX), "^penstock:%d+: ", ""), 1, REASON_BYTES_MAX)
end

local function describe_reading(problem)
    if find(problem, "too deep", 1, true) then return "the message is nested more than " .. depth_max .. " deep" end
    return "the message is not one CBOR item"
end

local function failure(problem)
    if phase == RUNNING and deadline.is_expired() then return TIMED_OUT, nil end
    if problem == deadline.NO_MEMORY then return NO_MEMORY, nil end
    if phase == READING then return FAILED, describe_reading(problem) end
    return phase == WRITING and UNREADABLE or FAILED, describe(problem)
end

-- Makes room for the next message, which is put in where running out of memory would end the process. A collection
-- that Lua makes by itself for lack of memory does not shrink the stack, this one does.
local function make_room()
    if written then renew_globals() end
    if collectgarbage("count") > idle_kib_max then collectgarbage() end
end

-- A function that takes a message and its state as CBOR and gives the result: a string, a boolean, nil, or a number
-- that says what went wrong.
local function stepper(run_kind)
    return function(message, state)
        local ok, result = pcall(run_kind, message, state)
        if not ok then
            deadline.stop()
            result, reason = failure(result)
            -- Lets go of a half-made result.
            encode(nil)
        end
        make_room()
        return result
    end
end

local function compiled(source)
    return load(PREFIX .. source, "=function", "t", {})
end

-- The value of an expression is returned, as the `eval` of the original Remits does it. That is tried first, because a
-- call is a statement as well; in parentheses, because an error in a tail call has no line.
local function chunk_of(source)
    local expression = compiled("return " .. source)
    if expression then return compiled("return (" .. source .. "\n)") or expression end
    return compiled(source)
end

-- Compiles the function. Gives the step, or nil after an error.
local function compile(kind, source)
    renew_globals()
    local problem
    chunk, problem = chunk_of(source)
    if chunk then return stepper(RUNS[kind]) end
    reason = describe(problem)
    return nil
end

-- Why the last step, or the compiler, failed.
local function last_reason()
    return reason
end

return {compile = compile, last_reason = last_reason}
