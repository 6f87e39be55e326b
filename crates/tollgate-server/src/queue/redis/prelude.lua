-- Requests put aside, under one name. All keys share a slot:
--   NAME            a stream of the requests that are being sent; its group's consumers are the nodes
--   NAME:later      the waiting ones by the microsecond they are due
--   NAME:done, NAME:dead   the others by the microsecond they became so
--   NAME:order      all of them in the order in which they came
--   NAME:item:ID, NAME:body:ID   what is known of one, and its body
--   NAME:senders    of each sender the requests that wait and the bytes of their bodies; `total`: the bytes of all that is kept
local stream = KEYS[1]
local group = 'tollgate'

local function part(name)
  return stream .. ':' .. name
end

local function item(id)
  return part('item:' .. id)
end

-- A request as it is told; nil if there is none.
local function told(id)
  local fields = { 'request', 'state', 'next_at', 'expires_at', 'tries', 'status', 'error', 'delivery' }
  local values = redis.call('HMGET', item(id), unpack(fields))
  if not values[1] then
    return nil
  end
  local all = { id }
  for n = 1, #fields do
    all[n + 1] = values[n] or ''
  end
  return all
end

local function finish(entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

-- Takes a request out of wherever it waits or is being sent.
local function leave(id)
  for _, place in ipairs({ 'later', 'done', 'dead' }) do
    redis.call('ZREM', part(place), id)
  end
  local delivery = redis.call('HGET', item(id), 'delivery')
  if delivery then
    finish(string.match(delivery, '^[^/]*'))
    redis.call('HDEL', item(id), 'delivery')
  end
end

-- A request that no longer waits takes nothing of its sender's share.
local function release(id)
  local known = redis.call('HMGET', item(id), 'sender', 'body_bytes')
  if not known[1] then
    return
  end
  redis.call('HDEL', item(id), 'sender')
  redis.call('HINCRBY', part('senders'), known[1] .. '/bytes', 0 - tonumber(known[2]))
  if redis.call('HINCRBY', part('senders'), known[1] .. '/items', -1) <= 0 then
    redis.call('HDEL', part('senders'), known[1] .. '/items', known[1] .. '/bytes')
  end
end

local function forget(id)
  leave(id)
  release(id)
  redis.call('HINCRBY', part('senders'), 'total', 0 - tonumber(redis.call('HGET', item(id), 'bytes') or 0))
  redis.call('ZREM', part('order'), id)
  redis.call('DEL', part('body:' .. id))
  return redis.call('DEL', item(id))
end

-- The oldest first.
local function in_order(ids)
  local place = {}
  for _, id in ipairs(ids) do
    place[id] = tonumber(redis.call('ZSCORE', part('order'), id) or '0')
  end
  table.sort(ids, function(a, b) return place[a] < place[b] end)
  return ids
end
