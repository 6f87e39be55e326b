-- The charge of counter `i`, with its current state.
local function charge_of(i)
  local a = 10 * i - 7
  local kind, flags, first, second = ARGV[a + 1], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local third, fourth = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  local c = {
    key = KEYS[i], kind = kind, cost = tonumber(ARGV[a + 2]), algorithm = kinds[kind],
    shadow = flags % 2 >= 1, counted = flags % 4 >= 2, queue = flags >= 4,
    -- of a bucket
    token = first, units = second, period = third, capacity = fourth, rate = kind .. ARGV[a + 4] .. '/' .. ARGV[a + 5],
    calendar = ARGV[a + 8], full = 0, at = 0, converted = false,
    -- of a window
    limit = first, window = second, step = third, steps = fourth,
    -- the result
    verdict = 0, wait = 0, left = 0, remaining = 0, granted = 0, failed = false,
  }
  if ARGV[a + 9] ~= '' then -- a queue that holds
    local max_wait, ahead = string.match(ARGV[a + 9], '^(%d*) (%d+)$')
    c.max_wait, c.ahead = tonumber(max_wait), tonumber(ahead)
  end
  -- A key with an unexpected value fails; the other keys do not.
  local read, fits = pcall(c.algorithm.load, c)
  if not read then
    c.failed = type(fits) == 'table' and fits.err or tostring(fits)
  elseif not fits then
    c.failed = 'WRONGTYPE the value is not a state of this version'
  end
  return c
end

local function settle(c, i)
  if c.cost >= 0 then
    c.algorithm.take(c, c.cost, 'debt')
  else
    local at, mark = string.match(ARGV[10 * i + 3], '^(%d+) (%d+)$')
    c.algorithm.refund(c, -c.cost, tonumber(at), tonumber(mark))
  end
  c.algorithm.load(c)
  c.verdict, c.wait, c.left = c.algorithm.decide(c, 0)
  c.remaining = c.left
end

local function charge(c, admitted)
  if admitted and c.verdict == 0 then
    c.algorithm.take(c, c.cost, 'charge')
    c.remaining, c.granted = c.left - c.cost, 1
  elseif c.verdict ~= 0 and c.counted then
    c.algorithm.take(c, c.cost, 'drain')
    c.verdict, c.wait, c.left = c.algorithm.decide(c, c.cost)
    c.remaining = c.left
  elseif c.converted then
    c.algorithm.save(c)
  end
end

local function run()
  local op, charges = ARGV[1], {}
  local admitted = op ~= 'n'
  for i = 1, #KEYS do
    local c = charge_of(i)
    charges[i] = c
    if op ~= 's' and not c.failed then
      c.verdict, c.wait, c.left = c.algorithm.decide(c, c.cost)
      c.remaining = c.left
      admitted = admitted and (c.verdict == 0 or c.shadow)
    end
  end
  local answer, n, states = { 1, now, admitted and 1 or 0 }, 3, {}
  for i, c in ipairs(charges) do
    if c.failed then
      answer[n + 1], answer[n + 2] = 3, c.failed
      n = n + 2
    else
      local before = op == 'd' and (call('GET', c.key) or '')
      if op == 's' then
        settle(c, i)
      elseif op ~= 'p' then
        charge(c, admitted)
      end
      if before then
        states[#states + 1], states[#states + 2] = before, call('GET', c.key) or ''
      end
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = c.verdict, c.wait, c.left, c.remaining
      answer[n + 5], answer[n + 6], answer[n + 7] = max(c.algorithm.fresh_at(c) - now, 0), c.granted, c.full
      answer[n + 8] = c.algorithm.counted_at and max(c.algorithm.counted_at(c), now) or now
      n = n + 8
    end
  end
  for i, state in ipairs(states) do
    answer[n + i] = state
  end
  return answer
end

local continuous = true
for i = 1, #KEYS do
  continuous = continuous and ARGV[10 * i - 6] == 'c' and ARGV[10 * i + 1] == ''
end
if continuous then
  return run()
end

