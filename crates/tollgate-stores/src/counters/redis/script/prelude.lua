-- Decides the charges of requests on one hash slot, one request after the other, and applies all or none of each.
--
-- KEYS: the counters. ARGV: the operation (c charge, d charge and return the states, n count a request that is denied
-- elsewhere, p peek, s settle), the time (empty: the server's), the deadline (by the server's clock; empty: none), the
-- number of limits, ten arguments for each limit, then the number of its limit for each counter, negative if another
-- counter of the same request follows. Returns 0 and the time if the deadline has passed, else 1, the time, and the
-- results by request: for each counter 4 and three numbers (a bucket was charged), 3 and an error, or eight numbers; 5
-- and an error if the request failed. Times and durations are microseconds. Numbers are doubles: all stored and
-- compared numbers are integers below 2^53, and larger products are divided exactly digit by digit (muldiv).
-- The library's algorithms are the definition; every function here mirrors one of theirs.
--
-- Lua creates a script's functions at every call: continuous buckets return before the other functions are created.

local call, try, match, format = redis.call, redis.pcall, string.match, string.format
local floor, ceil, abs, max, min = math.floor, math.ceil, math.abs, math.max, math.min
local WHOLE = 9007199254740992

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[3] ~= '' and now > tonumber(ARGV[3]) then
  return { 0, now }
end
-- With a given time keys live an hour longer: the server's clock, which expires them, may differ from it.
local slack_ms = 1
if ARGV[2] ~= '' then
  now, slack_ms = tonumber(ARGV[2]), 3600000
end

local limit_count = tonumber(ARGV[4])
-- The numbers of the limits are behind this argument.
local counters_at = 4 + 10 * limit_count

-- The arguments of a limit are behind this one.
local function limit_at(n)
  return 10 * n - 6
end

-- a * b / c, rounded down, and the remainder.
local function muldiv(a, b, c)
  local product = a * b
  if product < WHOLE then
    local q = floor(product / c)
    return q, product - q * c
  end
  local whole = floor(a / c)
  local part, q, r = a - whole * c, 0, 0
  local base = 2
  while c * base * 2 <= WHOLE do
    base = base * 2
  end
  local place, rest = 1, b
  while place * base <= b do
    place = place * base
  end
  while place >= 1 do
    local digit = floor(rest / place)
    rest = rest - digit * place
    local x, y = r * base, part * digit
    local qx, qy = floor(x / c), floor(y / c)
    q, r = q * base + qx + qy, (x - qx * c) + (y - qy * c)
    if r >= c then
      q, r = q + 1, r - c
    end
    place = place / base
  end
  return q + whole * b, r
end

local function muldiv_up(a, b, c)
  local q, r = muldiv(a, b, c)
  return r > 0 and q + 1 or q
end

-- Writes a state of text; a state equal to that of an unused key is deleted.
local function write(c, fresh_at, value)
  local lives_ms = ceil((fresh_at - now) / 1000)
  if lives_ms <= 0 then
    call('DEL', c.key)
  else
    call('SET', c.key, value, 'PX', string.format('%.0f', lives_ms + slack_ms))
  end
end

