local node = ARGV[1]
for n = 2, #ARGV do
  local entry = ARGV[n]
  local pending = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  if pending and pending[2] == node then
    redis.call('XCLAIM', stream, group, node, 0, entry, 'JUSTID')
  end
end
return 1
