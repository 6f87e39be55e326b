local state, last = ARGV[1], tonumber(ARGV[2]) - 1
local ids
if state == '' then
  ids = redis.call('ZRANGE', part('order'), 0, last)
elseif state == 'sending' then
  ids = {}
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', last + 1)) do
    ids[#ids + 1] = entry[2][2]
  end
else
  ids = redis.call('ZRANGE', part(state == 'queued' and 'later' or state), 0, last)
end
local all = {}
for _, id in ipairs(in_order(ids)) do
  all[#all + 1] = fields_of(id)
end
return all
