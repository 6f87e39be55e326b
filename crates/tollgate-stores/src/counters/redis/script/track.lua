-- Adds one writer's delta of a tracked key to the key's record; a sequence number is applied once (idempotent).
-- KEYS: the record. ARGV: writer, sequence number, tries, denials, last seen, times, times kept, TTL in ms,
-- writers kept.
local tries, denials, seen, latest, writers = 0, 0, 0, '', ''
local record = redis.call('GET', KEYS[1])
if record then
  local a, b, c, d, e =
    string.match(record, '^v1 tries=(%d+) denials=(%d+) last_seen=(%d+) latest=([%d,]*) writers=([%x:,]*)$')
  if not a then
    return redis.error_reply('ERR the value under the name of a tracking record has an unexpected format')
  end
  tries, denials, seen, latest, writers = tonumber(a), tonumber(b), tonumber(c), d, e
end

local others = {}
for writer, number in string.gmatch(writers, '(%x+):(%d+)') do
  if writer ~= ARGV[1] then
    others[#others + 1] = writer .. ':' .. number
  elseif tonumber(number) >= tonumber(ARGV[2]) then
    return 0
  end
end
others[#others + 1] = ARGV[1] .. ':' .. ARGV[2]

local times = {}
for time in string.gmatch(latest .. ',' .. ARGV[6], '%d+') do
  times[#times + 1] = tonumber(time)
end
table.sort(times)
for n = 1, #times do
  times[n] = string.format('%.0f', times[n])
end

local function last(list, count)
  return table.concat(list, ',', math.max(1, #list - count + 1))
end

local line = string.format(
  'v1 tries=%.0f denials=%.0f last_seen=%.0f latest=%s writers=%s',
  tries + tonumber(ARGV[3]),
  denials + tonumber(ARGV[4]),
  math.max(seen, tonumber(ARGV[5])),
  last(times, tonumber(ARGV[7])),
  last(others, tonumber(ARGV[9]))
)
redis.call('SET', KEYS[1], line, 'PX', ARGV[8])
return 1
