local node, count, now_us, timeout_ms, looked_at = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', stream) == 0 then
  redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
end

local taken = {}
local function take(entry)
  local id = entry[2] and entry[2][2]
  if not id or redis.call('EXISTS', item(id)) == 0 then
    return finish(entry[1])
  end
  redis.call('HSET', item(id), 'state', 'sending', 'delivery', entry[1] .. '/' .. node)
  taken[#taken + 1] = fields_of(id)
end

-- Deliveries that their node no longer renews: the attempt counts, its outcome is unknown.
local cursor = '0-0'
while #taken < count do
  local claimed = redis.call('XAUTOCLAIM', stream, group, node, timeout_ms, cursor, 'COUNT', count - #taken)
  for _, entry in ipairs(claimed[2]) do
    local id = entry[2] and entry[2][2]
    if id and redis.call('EXISTS', item(id)) == 1 then
      redis.call('HINCRBY', item(id), 'tries', 1)
      redis.call('HSET', item(id), 'error', 'the node that sent it has stopped')
    end
    take(entry)
  end
  cursor = claimed[1]
  if cursor == '0-0' then
    break
  end
end

if #taken < count then
  local due = redis.call('ZRANGEBYSCORE', part('later'), '-inf', now_us, 'LIMIT', 0, looked_at)
  for n, id in ipairs(in_order(due)) do
    if n > count - #taken then
      break
    end
    redis.call('ZREM', part('later'), id)
    redis.call('XADD', stream, '*', 'id', id)
  end
  local read = redis.call('XREADGROUP', 'GROUP', group, node, 'COUNT', count - #taken, 'STREAMS', stream, '>')
  for _, entry in ipairs(read and read[1][2] or {}) do
    take(entry)
  end
end
local next_due = redis.call('ZRANGE', part('later'), 0, 0, 'WITHSCORES')[2]
return { next_due or '', taken }
