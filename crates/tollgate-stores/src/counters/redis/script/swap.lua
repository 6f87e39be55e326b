-- Compare-and-swap. ARGV: the expected value (empty: none), the new value, its TTL in ms.
local seen = redis.call('GET', KEYS[1])
if (seen or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
