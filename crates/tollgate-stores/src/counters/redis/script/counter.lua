-- The sliding counter (n): the current window, and the previous one weighted by the part that still overlaps.
local counter = {}
kinds.n = counter

function counter.load(c)
  local value, name, current, previous = call('GET', c.key), '0', '0', '0'
  if value then
    name, current, previous = string.match(value, '^1 (%d+) (%d+) (%d+)$')
    if not name then
      return false
    end
  end
  c.name, c.current, c.previous = tonumber(name), tonumber(current), tonumber(previous)
  local index = floor(now / c.window)
  local passed = max(index - c.name, 0)
  if passed > 0 then
    c.name, c.current, c.previous = index, 0, passed == 1 and c.current or 0
  end
  local rest = c.window - max(now - c.name * c.window, 0)
  c.weight = muldiv_up(c.previous, rest, c.window)
  return true
end

local function counter_frees_at(c, cost)
  local start, count, room = c.name * c.window, c.previous, c.limit - c.current - cost
  if room < 0 then
    start, count, room = start + c.window, c.current, c.limit - cost
  end
  local rest = room >= count and c.window or (muldiv(c.window, room, count))
  return start + c.window - rest
end

function counter.decide(c, cost)
  return decide_window(c, c.weight + c.current, cost, counter_frees_at)
end

function counter.fresh_at(c)
  if c.current > 0 then
    return (c.name + 2) * c.window
  end
  return c.previous > 0 and (c.name + 1) * c.window or 0
end

function counter.counted_at(c)
  return c.name * c.window
end

local function save_counter(c)
  write(c, counter.fresh_at(c), string.format('1 %.0f %.0f %.0f', c.name, c.current, c.previous))
end

function counter.take(c, cost, how)
  if how == 'debt' then
    cost = min(cost, max(2 * c.limit - c.current - c.weight, 0))
  end
  local cap = how == 'drain' and c.limit or WHOLE
  c.current = min(c.current + cost, max(cap, c.current))
  save_counter(c)
end

function counter.refund(c, amount, at)
  local windows = c.name - floor(at / c.window)
  if windows == 0 then
    c.current = max(c.current - amount, 0)
  elseif windows == 1 then
    c.previous = max(c.previous - amount, 0)
  else
    return
  end
  save_counter(c)
end

