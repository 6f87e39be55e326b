-- Decides all charges of one hash slot and takes all or none of them.
--
-- KEYS: the counters. ARGV: what to do (c charge, d the same and tell states,
-- n count a request that is denied elsewhere, p peek, s settle), the instant (empty:
-- the server's), until when (the server's time; empty: no bound), then ten words for each counter. Instants and
-- spans are microseconds. Numbers are doubles: all that is stored or compared is whole and below 2^53, and
-- products that are not are divided exactly by parts (muldiv). The library's algorithms are the definition.

local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local format, sub, pack, unpack = string.format, string.sub, struct.pack, struct.unpack
local WHOLE = 9007199254740992

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[3] ~= '' and now > tonumber(ARGV[3]) then
  return { 0, now }
end
-- Where time is told, keys live an hour longer: what the server's clock says is of no meaning then.
local told, slack_ms = ARGV[2] ~= '', 1
if told then
  now, slack_ms = tonumber(ARGV[2]), 3600000
end

-- a * b / c, rounded down, and the rest.
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

-- The calendar: S seconds, W weeks from Monday, M months, Y years, each with its number.
local function index_at(calendar, t)
  local unit, count = sub(calendar, 1, 1), tonumber(sub(calendar, 2))
  local seconds = floor(t / 1000000)
  if unit == 'S' then
    return floor(seconds / count)
  end
  local day = floor(seconds / 86400)
  if unit == 'W' then
    return floor(floor((day + 3) / 7) / count)
  end
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local from_march = floor((5 * doy + 2) / 153)
  local month = from_march < 10 and from_march + 3 or from_march - 9
  local year = era * 400 + yoe + (month <= 2 and 1 or 0)
  if unit == 'M' then
    return floor(((year - 1970) * 12 + month - 1) / count)
  end
  return floor((year - 1970) / count)
end

local function start_of(calendar, index)
  local unit, units = sub(calendar, 1, 1), index * tonumber(sub(calendar, 2))
  if unit == 'S' then
    return units * 1000000
  elseif unit == 'W' then
    return max(units * 7 - 3, 0) * 86400000000
  end
  local months = unit == 'M' and units or units * 12
  local year, month = 1970 + floor(months / 12), months % 12 + 1
  if month <= 2 then
    year = year - 1
  end
  local era = floor(year / 400)
  local yoe, from_march = year - era * 400, (month + 9) % 12
  local doe = yoe * 365 + floor(yoe / 4) - floor(yoe / 100) + floor((153 * from_march + 2) / 5)
  return (era * 146097 + doe - 719468) * 86400000000
end

-- How time passes for a bucket: c continuously, s in steps, k by the calendar.
local function units_at(c, flow, units, t)
  if flow == 's' then
    return floor(t / c.step) * units
  elseif flow == 'k' then
    return index_at(c.calendar, t) * units
  elseif units == c.period then
    return t
  end
  local whole = floor(t / c.period)
  return whole * units + (muldiv(t - whole * c.period, units, c.period))
end

local function time_of(c, at)
  if c.kind == 's' then
    return ceil(at / c.units) * c.step
  elseif c.kind == 'k' then
    return start_of(c.calendar, ceil(at / c.units))
  elseif c.units == c.period then
    return at
  end
  local whole = floor(at / c.units)
  return whole * c.period + muldiv_up(at - whole * c.units, c.period, c.units)
end

-- The entries of a sliding window are (step, sum of all until here), oldest first, behind a head that says
-- which entry is the first that counts and what had been summed before it.
local HEAD, ENTRY = 12, 13
local function entry(key, i)
  return unpack('>I7I6', call('GETRANGE', key, HEAD + i * ENTRY, HEAD + i * ENTRY + ENTRY - 1))
end

-- The first entry from `i` on whose step (or sum) is at least `bound`.
local function first_entry(key, i, n, bound, by_sum)
  while i < n do
    local middle = floor((i + n) / 2)
    local step, sum = entry(key, middle)
    if (by_sum and sum or step) >= bound then
      n = middle
    else
      i = middle + 1
    end
  end
  return i
end

-- A state is what was read, as it stands now: nothing of it is written before all have been asked.
local load = {}

local function load_bucket(c)
  local value = call('GET', c.key)
  c.at = units_at(c, c.kind, c.units, now)
  c.full = 0
  if not value then
    return true
  end
  local full, rate = string.match(value, '^1 (%d+) (%l%d+/%d+)$')
  if not full then
    return false
  end
  c.full = tonumber(full)
  if rate == c.rate then
    return true
  end
  local flow, token, units = string.match(rate, '(%l)(%d+)/(%d+)')
  local debt = max(c.full - units_at(c, flow, tonumber(units), now), 0)
  c.full = debt > 0 and min(c.at + muldiv_up(debt, c.token, tonumber(token)), WHOLE / 2) or 0
  c.converted = true
  return true
end
load.c, load.s, load.k = load_bucket, load_bucket, load_bucket

local function load_window(c)
  local value, name, count = call('GET', c.key), '0', '0'
  if value then
    name, count = string.match(value, '^1 (%d+) (%d+)$')
    if not name then
      return false
    end
  end
  c.name, c.count = tonumber(name), tonumber(count)
  if c.kind == 'f' then
    local index = index_at(c.calendar, now)
    if index > c.name then
      c.name, c.count = index, 0
    end
    c.ends = start_of(c.calendar, c.name + 1)
  else
    if c.count == 0 or now >= c.name + c.period then
      c.name, c.count = now, 0
    end
    c.ends = c.name + c.period
  end
  return true
end
load.f, load.h = load_window, load_window

function load.n(c)
  local value, window, current, previous = call('GET', c.key), '0', '0', '0'
  if value then
    window, current, previous = string.match(value, '^1 (%d+) (%d+) (%d+)$')
    if not window then
      return false
    end
  end
  c.window, c.current, c.previous = tonumber(window), tonumber(current), tonumber(previous)
  local index = floor(now / c.period)
  local passed = max(index - c.window, 0)
  if passed > 0 then
    c.window, c.current, c.previous = index, 0, passed == 1 and c.current or 0
  end
  local rest = c.period - max(now - c.window * c.period, 0)
  c.weight = muldiv_up(c.previous, rest, c.period)
  return true
end

function load.w(c)
  local key, length = c.key, call('STRLEN', c.key)
  c.now_step = floor(now / c.step)
  c.oldest = max(c.now_step - c.steps + 1, 0)
  c.n, c.head, c.base, c.used, c.sum = 0, 0, 0, 0, 0
  if length == 0 then
    c.first = 0
    return true
  end
  local mark, head, base = unpack('>c2I4I6', call('GETRANGE', key, 0, HEAD - 1) .. '            ')
  c.n = (length - HEAD) / ENTRY
  if mark ~= 'w1' or c.n ~= floor(c.n) or c.n < 1 or head >= c.n then
    return false
  end
  c.head, c.head_base, c.base = head, base, base
  c.last, c.sum = entry(key, c.n - 1)
  c.first = head
  if c.last < c.oldest then
    c.first, c.base = c.n, c.sum
  elseif entry(key, head) < c.oldest then
    c.first = first_entry(key, head + 1, c.n - 1, c.oldest)
    local _, sum = entry(key, c.first - 1)
    c.base = sum
  end
  c.used = c.sum - c.base
  return true
end

-- 0 allow, 1 deny, 2 never; the delay or the wait; what is left.
local function decide(c, cost)
  local kind = c.kind
  if kind == 'c' or kind == 's' or kind == 'k' then
    local full = max(c.full, c.at)
    local left = floor(max(c.at + c.span - full, 0) / c.token)
    -- A queue that holds tells the wait, and denies one that is too long.
    local wait = c.max_wait and max(time_of(c, c.full) - now, 0) or 0
    local too_long = c.max_wait and max(wait - c.max_wait, 0) or 0
    if cost * c.token > c.span then
      return 2, 0, left
    elseif cost > left then
      return 1, max(time_of(c, full + cost * c.token - c.span) - now, too_long), left
    elseif too_long > 0 then
      return 1, too_long, left
    end
    return 0, wait, left
  end
  local limit = c.limit
  if kind == 'f' or kind == 'h' then
    local left = max(limit - c.count, 0)
    if cost > limit then
      return 2, 0, left
    elseif cost <= left then
      return 0, 0, left
    end
    return 1, c.ends - now, left
  elseif kind == 'n' then
    local left = max(max(limit - c.weight, 0) - c.current, 0)
    if cost > limit then
      return 2, 0, left
    elseif cost <= left then
      return 0, 0, left
    end
    local start, count, room = c.window * c.period, c.previous, limit - c.current - cost
    if room < 0 then
      start, count, room = start + c.period, c.current, limit - cost
    end
    local rest = room >= count and c.period or (muldiv(c.period, room, count))
    return 1, max(start + c.period - rest - now, 0), left
  end
  local left = max(limit - c.used, 0)
  if cost > limit then
    return 2, 0, left
  elseif cost <= left then
    return 0, 0, left
  end
  local frees = first_entry(c.key, c.first, c.n - 1, c.base + c.used + cost - limit, true)
  return 1, (entry(c.key, frees) + c.steps) * c.step - now, left
end

-- When the counter is as good as never seen.
local function fresh_at(c)
  local kind = c.kind
  if kind == 'c' or kind == 's' or kind == 'k' then
    return time_of(c, c.full)
  elseif kind == 'f' or kind == 'h' then
    return c.count > 0 and c.ends or 0
  elseif kind == 'n' then
    if c.current > 0 then
      return (c.window + 2) * c.period
    end
    return c.previous > 0 and (c.window + 1) * c.period or 0
  end
  return c.n > 0 and (c.last + c.steps) * c.step or 0
end

local function save(c)
  local lives_ms = ceil((fresh_at(c) - now) / 1000) + slack_ms
  if lives_ms <= slack_ms then
    call('DEL', c.key)
    return
  end
  local kind, value = c.kind, nil
  if kind == 'f' or kind == 'h' then
    value = format('1 %.0f %.0f', c.name, c.count)
  elseif kind == 'n' then
    value = format('1 %.0f %.0f %.0f', c.window, c.current, c.previous)
  else
    value = format('1 %.0f %s', c.full, c.rate)
  end
  call('SET', c.key, value, 'PX', format('%.0f', lives_ms))
end

local function write_head(c)
  -- Entries that no longer count go when they are the greater part.
  if c.first >= 32 and c.first * 2 > c.n then
    local rest = call('GETRANGE', c.key, HEAD + c.first * ENTRY, -1)
    call('SET', c.key, pack('>c2I4I6', 'w1', 0, c.base) .. rest, 'KEEPTTL')
    c.n, c.first = c.n - c.first, 0
  else
    call('SETRANGE', c.key, 0, pack('>c2I4I6', 'w1', c.first, c.base))
  end
  c.head = c.first
end

local function live_on(c)
  call('PEXPIRE', c.key, format('%.0f', max(ceil((fresh_at(c) - now) / 1000), 0) + slack_ms))
end

local function add_steps(c, cost)
  if cost == 0 then
    return
  end
  if c.first >= c.n then
    call('SET', c.key, pack('>c2I4I6I7I6', 'w1', 0, 0, c.now_step, cost))
    c.n, c.first, c.head, c.base, c.sum, c.last = 1, 0, 0, 0, cost, c.now_step
  else
    c.sum = c.sum + cost
    if c.last >= c.now_step then
      call('SETRANGE', c.key, HEAD + (c.n - 1) * ENTRY, pack('>I7I6', c.last, c.sum))
    else
      call('APPEND', c.key, pack('>I7I6', c.now_step, c.sum))
      c.last, c.n = c.now_step, c.n + 1
    end
    if c.first ~= c.head then
      write_head(c)
    end
  end
  c.used = c.sum - c.base
  live_on(c)
end

-- Takes `cost` off entry `i`, and off every sum behind it.
local function take_entry(c, i, cost)
  local kept, entries = call('GETRANGE', c.key, 0, HEAD + i * ENTRY - 1), {}
  local before = c.head_base
  if i > c.head then
    local _, sum = entry(c.key, i - 1)
    before = sum
  end
  local _, sum = entry(c.key, i)
  local taken = min(cost, sum - before)
  for n = i, c.n - 1 do
    local step, sum = entry(c.key, n)
    if n > i or sum - taken > before then
      entries[#entries + 1] = pack('>I7I6', step, sum - taken)
    end
  end
  c.n = i + #entries
  if c.n <= c.head then
    call('DEL', c.key)
  else
    call('SET', c.key, kept .. table.concat(entries), 'KEEPTTL')
  end
end

-- Takes `cost`, up to `bound`: none for a charge, empty for a counted denial, one capacity below for a debt.
local function take(c, cost, how)
  local kind = c.kind
  if kind == 'c' or kind == 's' or kind == 'k' then
    local taken = max(c.full, c.at) + cost * c.token
    if how ~= 'charge' then
      taken = max(min(taken, c.at + (how == 'owe' and 2 or 1) * c.span), c.full)
    end
    c.full = taken
  elseif kind == 'f' or kind == 'h' then
    local cap = how == 'charge' and WHOLE or how == 'owe' and 2 * c.limit or c.limit
    c.count = min(c.count + cost, max(cap, c.count))
  elseif kind == 'n' then
    if how == 'owe' then
      cost = min(cost, max(2 * c.limit - c.current - c.weight, 0))
    end
    local cap = how == 'drain' and c.limit or WHOLE
    c.current = min(c.current + cost, max(cap, c.current))
  else
    if how == 'owe' then
      cost = min(cost, max(2 * c.limit - c.used, 0))
    elseif how == 'drain' then
      cost = min(cost, c.limit)
    end
    local cap = max(c.limit, c.used)
    add_steps(c, cost)
    if how == 'drain' and c.used > cap then
      -- The latest tries fill the window: as much of the oldest is forgotten.
      c.base = c.sum - cap
      c.first = first_entry(c.key, c.first, c.n - 1, c.base + 1, true)
      c.used = cap
      write_head(c)
    end
    return
  end
  save(c)
end

-- Gives `amount` of a charge back, as far as time has not.
local function refund(c, amount, at, mark)
  local kind = c.kind
  if kind == 'c' or kind == 's' or kind == 'k' then
    local earlier = units_at(c, kind, c.units, at)
    local gone = max(c.at - earlier, 0)
    if c.converted or (gone > 0 and kind ~= 'c') or (c.queue and c.full ~= mark) then
      return
    end
    local kept = max(amount * c.token - gone, 0)
    c.full = c.full - min(kept, max(c.full - c.at, 0))
  elseif kind == 'f' or kind == 'h' then
    local here = kind == 'h' and c.name <= at and at < c.ends or kind == 'f' and index_at(c.calendar, at) == c.name
    if not here or now >= c.ends then
      return
    end
    c.count = max(c.count - amount, 0)
  elseif kind == 'n' then
    local windows = c.window - floor(at / c.period)
    if windows == 0 then
      c.current = max(c.current - amount, 0)
    elseif windows == 1 then
      c.previous = max(c.previous - amount, 0)
    else
      return
    end
  else
    local step = floor(at / c.step)
    if step < c.oldest or c.n == 0 then
      return
    end
    local i = first_entry(c.key, c.head, c.n, step)
    if i < c.n and entry(c.key, i) == step then
      take_entry(c, i, amount)
    end
    return
  end
  save(c)
end

-- What counter `i` is asked.
local function charge_of(i)
  local a = 3 + (i - 1) * 10
  local kind, flags = ARGV[a + 1], tonumber(ARGV[a + 3])
  local c = { key = KEYS[i], kind = kind, cost = tonumber(ARGV[a + 2]), calendar = ARGV[a + 8], grant = ARGV[a + 10] }
  c.shadow, c.counted, c.queue = flags % 2 >= 1, flags % 4 >= 2, flags >= 4
  local first, second, third, fourth = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  if kind == 'c' or kind == 's' or kind == 'k' then
    c.token, c.units, c.period, c.span = first, second, third, fourth
    c.rate = kind .. ARGV[a + 4] .. '/' .. ARGV[a + 5]
    c.step, c.max_wait = tonumber(c.calendar), tonumber(ARGV[a + 9])
  else
    c.limit, c.period, c.step, c.steps = first, second, third, fourth
  end
  -- A key that holds something else has no answer; the others do.
  local read, fits = pcall(load[kind], c)
  if not read then
    c.failed = type(fits) == 'table' and fits.err or tostring(fits)
  elseif not fits then
    c.failed = 'WRONGTYPE the value is no state of this version'
  end
  return c
end

local function settle(c)
  if c.cost >= 0 then
    return take(c, c.cost, 'owe')
  end
  local at, mark = string.match(c.grant, '^(%d+) (%d+)$')
  refund(c, -c.cost, tonumber(at), tonumber(mark))
end

local function settle_and_look(c)
  settle(c)
  load[c.kind](c)
  c.verdict, c.wait, c.left = decide(c, 0)
  c.remaining, c.granted = c.left, 0
end

local function charge(c, admitted)
  if admitted and c.verdict == 0 then
    take(c, c.cost, 'charge')
    c.remaining, c.granted = c.left - c.cost, 1
  elseif c.verdict ~= 0 and c.counted then
    take(c, c.cost, 'drain')
    c.verdict, c.wait, c.left = decide(c, c.cost)
    c.remaining = c.left
  elseif c.converted then
    save(c)
  end
end

local did, charges = ARGV[1], {}
local admitted = did ~= 'n'
for i = 1, #KEYS do
  charges[i] = charge_of(i)
end
for _, c in ipairs(charges) do
  if did ~= 's' and not c.failed then
    c.verdict, c.wait, c.left = decide(c, c.cost)
    c.remaining, c.granted = c.left, 0
    admitted = admitted and (c.verdict == 0 or c.shadow)
  end
end

local answer, states = { 1, now, admitted and 1 or 0 }, {}
for _, c in ipairs(charges) do
  local n = #answer
  if c.failed then
    answer[n + 1], answer[n + 2] = 3, c.failed
  else
    if did == 'd' then
      states[#states + 1] = call('GET', c.key) or ''
    end
    if did == 's' then
      settle_and_look(c)
    elseif did ~= 'p' then
      charge(c, admitted)
    end
    if did == 'd' then
      states[#states + 1] = call('GET', c.key) or ''
    end
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = c.verdict, c.wait, c.left, c.remaining
    answer[n + 5], answer[n + 6], answer[n + 7] = max(fresh_at(c) - now, 0), c.granted, c.full or 0
  end
end
for _, state in ipairs(states) do
  answer[#answer + 1] = state
end
return answer
