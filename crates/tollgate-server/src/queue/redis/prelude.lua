-- The queue NAME. All keys share a hash slot:
--   NAME            a stream of the requests that are being sent; its group's consumers are the nodes
--   NAME:later      queued requests, scored by the microsecond they are due
--   NAME:done, NAME:dead   finished requests, scored by the microsecond they finished
--   NAME:order      all requests, scored by sequence number
--   NAME:item:ID, NAME:body:ID   the fields of a request, and its body
--   NAME:senders    per sender the queued requests and the bytes of their bodies; `total`: the bytes of all requests
local stream = KEYS[1]
local group = 'tollgate'

local function part(name)
  return stream .. ':' .. name
end

local function item(id)
  return part('item:' .. id)
end

-- The fields of a request; nil if there is none.
local function fields_of(id)
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

-- Removes a request from its set and ends its delivery.
local function leave(id)
  for _, set in ipairs({ 'later', 'done', 'dead' }) do
    redis.call('ZREM', part(set), id)
  end
  local delivery = redis.call('HGET', item(id), 'delivery')
  if delivery then
    finish(string.match(delivery, '^[^/]*'))
    redis.call('HDEL', item(id), 'delivery')
  end
end

-- Subtracts a request that is no longer queued from its sender's share.
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

-- Sorts ids by sequence number, oldest first.
local function in_order(ids)
  local order = {}
  for _, id in ipairs(ids) do
    order[id] = tonumber(redis.call('ZSCORE', part('order'), id) or '0')
  end
  table.sort(ids, function(a, b) return order[a] < order[b] end)
  return ids
end
