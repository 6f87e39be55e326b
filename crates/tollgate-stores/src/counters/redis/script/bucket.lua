-- Buckets: the state is the time at which the bucket is full again, in units of which a token is a whole number.
-- Refill: c continuously, s in ticks, k by the calendar, a continuously with a state that has no rate.
local index_at, start_of

local function units_at(c, flow, units, t)
  if flow == 'a' then
    return t
  elseif flow == 'c' then
    if units == c.period then
      return t
    end
    local whole = floor(t / c.period)
    return whole * units + (muldiv(t - whole * c.period, units, c.period))
  elseif flow == 's' then
    return floor(t / tonumber(c.calendar)) * units
  end
  return index_at(c.calendar, t) * units
end

local function time_of(c, at)
  if c.kind == 'a' then
    return at
  elseif c.kind == 'c' then
    if c.units == c.period then
      return at
    end
    local whole = floor(at / c.units)
    return whole * c.period + muldiv_up(at - whole * c.units, c.period, c.units)
  elseif c.kind == 's' then
    return ceil(at / c.units) * tonumber(c.calendar)
  end
  return start_of(c.calendar, ceil(at / c.units))
end

local bucket = {}

function bucket.load(c)
  local value = call('GET', c.key)
  c.at, c.full = units_at(c, c.kind, c.units, now), 0
  if not value then
    return true
  end
  local full, rate = string.match(value, '^1 (%d+) (%l%d+/%d+)$')
  if not full then
    return false
  end
  c.full = tonumber(full)
  if rate ~= c.rate and c.kind ~= 'a' then
    -- Written under another rate: the debt is converted.
    local flow, token, units = string.match(rate, '(%l)(%d+)/(%d+)')
    local debt = max(c.full - units_at(c, flow, tonumber(units), now), 0)
    c.full = debt > 0 and min(c.at + muldiv_up(debt, c.token, tonumber(token)), WHOLE / 2) or 0
    c.converted = true
  end
  return true
end

-- Returns 0 allow, 1 deny or 2 never; the delay or the wait; what remains.
function bucket.decide(c, cost)
  local full = max(c.full, c.at)
  local left = floor(max(c.at + c.capacity - full, 0) / c.token)
  local wait, too_long = 0, 0
  if c.ahead then -- a queue that holds: the delay, or a denial if it is above max_wait
    local turn = max(c.full - c.ahead, 0)
    wait = max(time_of(c, turn) - now, 0)
    too_long = max(c.max_wait and wait - c.max_wait or time_of(c, max(turn - c.capacity, 0)) - now, 0)
  end
  if cost * c.token > c.capacity then
    return 2, 0, left
  elseif cost > left then
    return 1, max(time_of(c, full + cost * c.token - c.capacity) - now, too_long), left
  elseif too_long > 0 then
    return 1, too_long, left
  end
  return 0, wait, left
end

function bucket.fresh_at(c)
  return time_of(c, c.full)
end

function bucket.save(c)
  write(c, time_of(c, c.full), string.format('1 %.0f %s', c.full, c.rate))
end

-- Charges `cost`: all of it for a charge, at most to empty for a counted denial, at most one capacity below empty for
-- a debt.
function bucket.take(c, cost, how)
  local taken = max(c.full, c.at) + cost * c.token
  if how ~= 'charge' then
    taken = max(min(taken, c.at + (how == 'debt' and 2 or 1) * c.capacity), c.full)
  end
  c.full = taken
  bucket.save(c)
end

-- Refunds `amount` of a charge, less what has been refilled since. A queue refunds only its last entry (its state
-- equals `mark`), and then all of it: what has leaked since belonged to the entries ahead.
function bucket.refund(c, amount, at, mark)
  local gone = c.queue and 0 or max(c.at - units_at(c, c.kind, c.units, at), 0)
  if c.converted or (gone > 0 and c.kind ~= 'c' and c.kind ~= 'a') or (c.queue and c.full ~= mark) then
    return
  end
  c.full = c.full - min(max(amount * c.token - gone, 0), max(c.full - c.at, 0))
  bucket.save(c)
end

local kinds = { a = bucket, c = bucket, s = bucket, k = bucket }

