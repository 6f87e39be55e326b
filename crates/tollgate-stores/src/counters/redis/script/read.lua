-- The values of some keys of one slot, each as it is or nothing.
local values = {}
for i, key in ipairs(KEYS) do
  values[i] = redis.call('GET', key)
end
return values
