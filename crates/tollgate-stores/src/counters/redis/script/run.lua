-- The charge of counter `i`, with its current state.
local function charge_of(i)
  local a = limit_at(abs(ARGV[counters_at + i]))
  local kind, flags, first, second = ARGV[a + 1], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local third, fourth = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  local c = {
    key = KEYS[i], kind = kind, cost = tonumber(ARGV[a + 2]), algorithm = kinds[kind],
    shadow = flags % 2 >= 1, counted = flags % 4 >= 2, queue = flags >= 4, grant = ARGV[a + 10],
    -- of a bucket
    token = first, units = second, period = third, capacity = fourth, rate = kind .. ARGV[a + 4] .. '/' .. ARGV[a + 5],
    calendar = ARGV[a + 8], full = 0, at = 0, converted = false,
    -- of a window
    limit = first, window = second, step = third, steps = fourth,
    -- the result
    verdict = 0, wait = 0, left = 0, remaining = 0, granted = 0, failed = false,
  }
  if ARGV[a + 9] ~= '' then -- a queue that holds
    local max_wait, ahead = match(ARGV[a + 9], '^(%d*) (%d+)$')
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

local function settle(c)
  if c.cost >= 0 then
    c.algorithm.take(c, c.cost, 'debt')
  else
    local at, mark = match(c.grant, '^(%d+) (%d+)$')
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

-- Decides the charges of one request, counters `first` to `last`, and adds their results to the answer.
local function decide_request(answer, first, last)
  local op, charges = ARGV[1], {}
  local admitted = op ~= 'n'
  for i = first, last do
    local c = charge_of(i)
    charges[#charges + 1] = c
    if op ~= 's' and not c.failed then
      c.verdict, c.wait, c.left = c.algorithm.decide(c, c.cost)
      c.remaining = c.left
      admitted = admitted and (c.verdict == 0 or c.shadow)
    end
  end
  local n, states = #answer, {}
  for _, c in ipairs(charges) do
    if c.failed then
      answer[n + 1], answer[n + 2] = 3, c.failed
      n = n + 2
    else
      local before = op == 'd' and (call('GET', c.key) or '')
      if op == 's' then
        settle(c)
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
end

-- The limits that `charge_bucket` charges, by the argument of a counter that is the only one of its request.
local function buckets_of_one()
  local buckets = {}
  for n = 1, ARGV[1] == 'c' and limit_count or 0 do
    local a = limit_at(n)
    local kind, rate = ARGV[a + 1], ARGV[a + 1] .. ARGV[a + 4] .. '/' .. ARGV[a + 5]
    if (kind == 'c' or kind == 'a') and tonumber(ARGV[a + 3]) < 4 and ARGV[a + 9] == '' then
      local b = {
        kind = kind, cost = tonumber(ARGV[a + 2]), token = tonumber(ARGV[a + 4]), units = tonumber(ARGV[a + 5]),
        period = tonumber(ARGV[a + 6]), state = '^1 (%d+) ' .. rate .. '$', format = '1 %d ' .. rate,
      }
      b.at = units_at(b, kind, b.units, now)
      b.full_at_most = b.at + tonumber(ARGV[a + 7])
      b.counts_time = kind == 'a' or b.units == b.period
      buckets[tostring(n)] = b
    end
  end
  return buckets
end

-- Charges a continuous bucket that has room, and whose state has this rate: the usual charge in a few steps. Returns
-- what was left, the time until the bucket is full again and its state; nothing if the charge is another one.
local function charge_bucket(b, key)
  local full, value = b.at, try('GET', key)
  if value then
    full = tonumber(type(value) == 'string' and match(value, b.state))
    if not full then
      return
    elseif full < b.at then
      full = b.at
    end
  end
  local left = floor((b.full_at_most - full) / b.token)
  if b.cost > left then
    return
  end
  full = full + b.cost * b.token
  local reset = (b.counts_time and full or time_of(b, full)) - now
  if reset <= 0 then
    return
  end
  call('SET', key, format(b.format, full), 'PX', ceil(reset / 1000) + slack_ms)
  return left, reset, full
end

-- Decides the requests, one after the other. An error is the result of its request only.
local function run()
  local answer, n, first = { 1, now }, 2, 1
  local buckets = buckets_of_one()
  for i = 1, #KEYS do
    local argument, ran, left, reset, full = ARGV[counters_at + i], true
    local bucket = first == i and buckets[argument]
    if bucket then
      ran, left, reset, full = pcall(charge_bucket, bucket, KEYS[i])
    end
    if ran and left then
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = 4, left, reset, full
      n, first = n + 4, i + 1
    elseif tonumber(argument) > 0 then
      local failure = left
      if ran then
        ran, failure = pcall(decide_request, answer, first, i)
      end
      if not ran then
        for k = #answer, n + 1, -1 do
          answer[k] = nil
        end
        answer[n + 1], answer[n + 2] = 5, type(failure) == 'table' and failure.err or tostring(failure)
      end
      n, first = #answer, i + 1
    end
  end
  return answer
end

local is_continuous = true
for n = 1, limit_count do
  local a = limit_at(n)
  is_continuous = is_continuous and ARGV[a + 1] == 'c' and ARGV[a + 8] == ''
end
if is_continuous then
  return run()
end
