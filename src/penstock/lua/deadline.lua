-- The time that a function may take for one message, and the errors that it cannot catch.
--
-- An instruction hook looks at the clock now and then. It is on only while a function runs, because it halves Lua's
-- speed. The clock is the process's CPU time: a busy machine is not the function's fault.

local seconds_max = ...
local sethook, clock, error = debug.sethook, os.clock, error

local HOOK_INSTRUCTIONS = 10000
local HOOK_RESUMES = 100
local EXPIRED, NO_MEMORY = "ran too long", "not enough memory"

local started, expired, resumes

local function look()
    if started == nil then
        started = clock()
    elseif expired or clock() - started > seconds_max then
        expired = true
        error(EXPIRED, 0)
    end
end

local function start()
    started, expired, resumes = nil, false, 0
    sethook(look, "", HOOK_INSTRUCTIONS)
end

local function stop()
    sethook()
end

-- Each coroutine has a hook and a count of its own, so many short ones could hide from the hook.
local function watch(thread)
    sethook(thread, look, "", HOOK_INSTRUCTIONS)
end

local function count_resume()
    resumes = resumes + 1
    if resumes % HOOK_RESUMES == 0 then look() end
end

local function is_expired()
    return expired
end

-- Whether an error ends the message even inside pcall.
local function is_final(message)
    return expired or message == NO_MEMORY
end

return {
    NO_MEMORY = NO_MEMORY, start = start, stop = stop, watch = watch, count_resume = count_resume,
    is_expired = is_expired, is_final = is_final,
}
