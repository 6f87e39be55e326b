-- The values of keys of one slot; nil for a missing key.
local values = {}
for i, key in ipairs(KEYS) do
  values[i] = redis.call('GET', key)
end
return values
