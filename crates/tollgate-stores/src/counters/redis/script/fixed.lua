-- The decision of a window with `used` counted; `frees_at` is called only for a denial and returns when there is room.
local function decide_window(c, used, cost, frees_at)
  local left = max(c.limit - used, 0)
  if cost > c.limit then
    return 2, 0, left
  elseif cost <= left then
    return 0, 0, left
  end
  return 1, max(frees_at(c, cost) - now, 0), left
end

-- Fixed windows: f on the calendar, h from the first hit. The state stores its window: an index (f) or a start (h).
local fixed = {}
kinds.f, kinds.h = fixed, fixed

function fixed.load(c)
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
    if c.count == 0 or now >= c.name + c.window then
      c.name, c.count = now, 0
    end
    c.ends = c.name + c.window
  end
  return true
end

local function end_of(c)
  return c.ends
end

function fixed.decide(c, cost)
  return decide_window(c, c.count, cost, end_of)
end

function fixed.fresh_at(c)
  return c.count > 0 and c.ends or 0
end

-- The start of the charged window. If the server's clock went back, that window is ahead of the clock.
function fixed.counted_at(c)
  return c.kind == 'f' and start_of(c.calendar, c.name) or c.name
end

local function save_fixed(c)
  write(c, fixed.fresh_at(c), string.format('1 %.0f %.0f', c.name, c.count))
end

function fixed.take(c, cost, how)
  local cap = how == 'charge' and WHOLE or how == 'debt' and 2 * c.limit or c.limit
  c.count = min(c.count + cost, max(cap, c.count))
  save_fixed(c)
end

function fixed.refund(c, amount, at)
  local here = c.kind == 'h' and c.name <= at and at < c.ends or c.kind == 'f' and index_at(c.calendar, at) == c.name
  if here and now < c.ends then
    c.count = max(c.count - amount, 0)
    save_fixed(c)
  end
end

