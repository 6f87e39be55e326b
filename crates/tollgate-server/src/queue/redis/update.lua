local id, delivery, state, at_us, next_at, expires_at, tries, status, why = unpack(ARGV)
-- A node that has lost the delivery to another one must not change the request.
if redis.call('EXISTS', item(id)) == 0 or (redis.call('HGET', item(id), 'delivery') or '') ~= delivery then
  return 0
end
leave(id)
if state ~= 'queued' then
  release(id)
end
redis.call('HSET', item(id), 'state', state, 'next_at', next_at, 'expires_at', expires_at, 'tries', tries,
  'status', status, 'error', why)
redis.call('ZADD', part(state == 'queued' and 'later' or state), at_us, id)
return 1
