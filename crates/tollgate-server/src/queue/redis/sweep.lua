local done_us, dead_us, most, idle_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
for set, before in pairs({ done = done_us, dead = dead_us }) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', part(set), '-inf', before, 'LIMIT', 0, most)) do
    forget(id)
  end
end
-- Consumers of stopped nodes, without pending deliveries.
if redis.call('EXISTS', stream) == 1 then
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local known = {}
    for n = 1, #consumer, 2 do
      known[consumer[n]] = consumer[n + 1]
    end
    if known.pending == 0 and known.idle > idle_ms then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, known.name)
    end
  end
end
return 1
