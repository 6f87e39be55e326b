local id, request, body, due_us, next_at, expires_at, most = unpack(ARGV)
local size, most_bytes, sender = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local sender_items, sender_bytes = tonumber(ARGV[11]), tonumber(ARGV[12])
if redis.call('ZCARD', part('later')) + redis.call('XLEN', stream) >= tonumber(most) then
  return 0
end
local known = redis.call('HMGET', part('senders'), sender .. '/items', sender .. '/bytes')
if tonumber(known[1] or 0) >= sender_items or tonumber(known[2] or 0) + #body > sender_bytes then
  return 2
end
-- Answered requests are removed first, then dead ones.
while tonumber(redis.call('HGET', part('senders'), 'total') or 0) + size > most_bytes do
  local oldest = redis.call('ZRANGE', part('done'), 0, 0)[1] or redis.call('ZRANGE', part('dead'), 0, 0)[1]
  if not oldest then
    return 0
  end
  forget(oldest)
end
redis.call('HINCRBY', part('senders'), 'total', size)
redis.call('HINCRBY', part('senders'), sender .. '/items', 1)
redis.call('HINCRBY', part('senders'), sender .. '/bytes', #body)
redis.call('HSET', item(id), 'bytes', size, 'sender', sender, 'body_bytes', #body)
redis.call('HSET', item(id), 'request', request, 'state', 'queued', 'next_at', next_at, 'expires_at', expires_at,
  'tries', '0')
redis.call('SET', part('body:' .. id), body)
redis.call('ZADD', part('later'), due_us, id)
redis.call('ZADD', part('order'), redis.call('INCR', part('sequence')), id)
return 1
