-- Decides all charges of one hash slot and applies all or none of them.
--
-- KEYS: the counters. ARGV: the operation (c charge, d charge and return the states, n count a request that is denied
-- elsewhere, p peek, s settle), the time (empty: the server's), the deadline (by the server's clock; empty: none),
-- then ten arguments for each counter. Times and durations are microseconds. Numbers are doubles: all stored and
-- compared numbers are integers below 2^53, and larger products are divided exactly digit by digit (muldiv).
-- The library's algorithms are the definition; every function here mirrors one of theirs.
--
-- Lua creates a script's functions at every call: continuous buckets return before the other functions are created.

local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
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

