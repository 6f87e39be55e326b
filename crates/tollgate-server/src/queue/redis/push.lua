local id, request, body, due_us, next_at, expires_at, most = unpack(ARGV)
if redis.call('ZCARD', part('later')) + redis.call('XLEN', stream) >= tonumber(most) then
  return 0
end
redis.call('HSET', item(id), 'request', request, 'state', 'queued', 'next_at', next_at, 'expires_at', expires_at,
  'tries', '0')
redis.call('SET', part('body:' .. id), body)
redis.call('ZADD', part('later'), due_us, id)
redis.call('ZADD', part('order'), redis.call('INCR', part('sequence')), id)
return 1
