-- TryAdd: SET NX, but a value of a format that is not known here counts as
-- absent. KEYS[1] the key, ARGV[1] the encoded value, ARGV[2] milliseconds.
-- Returns 0 present, 1 added, 2 added in place of an unreadable value.
if redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
	return 1
end
local head = redis.call('GETRANGE', KEYS[1], 0, 20)
if head:sub(1, 1) == 'A' or head == '0' or head:match('^%-?[1-9]%d*$') then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 2
