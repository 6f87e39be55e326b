-- Sliding windows (w): a head, then entries of (step, prefix sum), oldest first. The head has the index of the first
-- entry in the window and the prefix sum before it. The sum over a range is the difference of two prefix sums.
local sliding, HEAD, ENTRY = {}, 12, 13
kinds.w = sliding

local function entry(key, i)
  return struct.unpack('>I7I6', call('GETRANGE', key, HEAD + i * ENTRY, HEAD + i * ENTRY + ENTRY - 1))
end

-- The first entry from `i` on, before `n`, whose step (or sum) is at least `bound`.
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

function sliding.load(c)
  local key, length = c.key, call('STRLEN', c.key)
  c.now_step = floor(now / c.step)
  c.oldest = max(c.now_step - c.steps + 1, 0)
  c.n, c.head, c.first, c.head_base, c.base, c.used, c.sum = 0, 0, 0, 0, 0, 0, 0
  if length == 0 then
    return true
  end
  c.n = (length - HEAD) / ENTRY
  if c.n ~= floor(c.n) or c.n < 1 then
    return false
  end
  local mark, head, base, step = struct.unpack('>c2I4I6I7', call('GETRANGE', key, 0, HEAD + ENTRY - 1))
  if mark ~= 'w1' or head >= c.n then
    return false
  end
  c.head, c.first, c.head_base, c.base = head, head, base, base
  c.last, c.sum = entry(key, c.n - 1)
  if c.last < c.oldest then
    c.first, c.base = c.n, c.sum
  elseif (head == 0 and step or entry(key, head)) < c.oldest then
    c.first = first_entry(key, head + 1, c.n - 1, c.oldest)
    local _, sum = entry(key, c.first - 1)
    c.base = sum
  end
  c.used = c.sum - c.base
  return true
end

local function sliding_frees_at(c, cost)
  local frees = first_entry(c.key, c.first, c.n - 1, c.sum + cost - c.limit, true)
  return (entry(c.key, frees) + c.steps) * c.step
end

function sliding.decide(c, cost)
  return decide_window(c, c.used, cost, sliding_frees_at)
end

function sliding.fresh_at(c)
  return c.n > 0 and (c.last + c.steps) * c.step or 0
end

function sliding.counted_at(c)
  return c.n > 0 and c.last * c.step or 0
end

-- Sets the TTL of the key: until its newest entry leaves the window.
local function expire(c)
  call('PEXPIRE', c.key, string.format('%.0f', max(ceil((sliding.fresh_at(c) - now) / 1000), 0) + slack_ms))
end

local function write_head(c)
  -- Expired entries are removed once they are more than half.
  if c.first >= 32 and c.first * 2 > c.n then
    local rest = call('GETRANGE', c.key, HEAD + c.first * ENTRY, -1)
    call('SET', c.key, struct.pack('>c2I4I6', 'w1', 0, c.base) .. rest, 'KEEPTTL')
    c.n, c.first = c.n - c.first, 0
  else
    call('SETRANGE', c.key, 0, struct.pack('>c2I4I6', 'w1', c.first, c.base))
  end
  c.head = c.first
end

-- Prefix sums have six bytes: they are rebased long before they overflow.
local function rebase(c)
  local entries = { struct.pack('>c2I4I6', 'w1', 0, 0) }
  for i = c.first, c.n - 1 do
    local step, sum = entry(c.key, i)
    entries[#entries + 1] = struct.pack('>I7I6', step, sum - c.base)
  end
  call('SET', c.key, table.concat(entries), 'KEEPTTL')
  c.sum, c.n, c.base, c.first, c.head = c.sum - c.base, c.n - c.first, 0, 0, 0
end

local function add_entry(c, cost)
  if cost == 0 then
    return
  end
  if c.first < c.n and c.sum + cost >= WHOLE / 64 then
    rebase(c)
  end
  if c.first >= c.n then
    call('SET', c.key, struct.pack('>c2I4I6I7I6', 'w1', 0, 0, c.now_step, cost))
    c.n, c.first, c.head, c.base, c.sum, c.last = 1, 0, 0, 0, cost, c.now_step
  else
    c.sum = c.sum + cost
    if c.last >= c.now_step then
      call('SETRANGE', c.key, HEAD + (c.n - 1) * ENTRY, struct.pack('>I7I6', c.last, c.sum))
    else
      call('APPEND', c.key, struct.pack('>I7I6', c.now_step, c.sum))
      c.last, c.n = c.now_step, c.n + 1
    end
    if c.first ~= c.head then
      write_head(c)
    end
  end
  c.used = c.sum - c.base
  expire(c)
end

function sliding.take(c, cost, how)
  if how == 'debt' then
    cost = min(cost, max(2 * c.limit - c.used, 0))
  elseif how == 'drain' then
    cost = min(cost, c.limit)
  end
  local cap = max(c.limit, c.used)
  add_entry(c, cost)
  if how == 'drain' and c.used > cap then
    -- A counted denial fills the window at most: the oldest entries are dropped in exchange.
    c.base, c.used = c.sum - cap, cap
    c.first = first_entry(c.key, c.first, c.n - 1, c.base + 1, true)
    write_head(c)
  end
end

-- Subtracts `amount` from the entry of `at`, and from every prefix sum after it.
function sliding.refund(c, amount, at)
  local step = floor(at / c.step)
  local i = first_entry(c.key, c.head, c.n, step)
  if step < c.oldest or i >= c.n or entry(c.key, i) ~= step then
    return
  end
  local before, newest, taken, entries = c.head_base, 0, nil, {}
  if i > c.head then
    newest, before = entry(c.key, i - 1)
  end
  for n = i, c.n - 1 do
    local step, sum = entry(c.key, n)
    taken = taken or min(amount, sum - before)
    if n > i or sum - taken > before then
      entries[#entries + 1] = struct.pack('>I7I6', step, sum - taken)
      newest = step
    end
  end
  if i + #entries <= c.head then
    call('DEL', c.key)
  else
    call('SET', c.key, call('GETRANGE', c.key, 0, HEAD + i * ENTRY - 1) .. table.concat(entries), 'KEEPTTL')
    c.last = newest
    expire(c)
  end
end

return run()
