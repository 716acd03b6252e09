-- Increment: INCRBY and PEXPIRE in one step, the second only after the first.
-- KEYS[1] the key, ARGV[1] the amount, ARGV[2] milliseconds.
-- Returns {count, 0}, {count, 1} when an unreadable value was replaced, or an
-- error. The count is text, since a number of Lua is exact to 2^53 only.
local reply = redis.pcall('INCRBY', KEYS[1], ARGV[1])
if type(reply) == 'number' then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return {redis.call('GET', KEYS[1]), 0}
end
if redis.call('TYPE', KEYS[1])['ok'] ~= 'string' then
	return reply -- nothing there: the server could not write; or no value of ours
end
local head = redis.call('GETRANGE', KEYS[1], 0, 20)
if head:sub(1, 1) == 'A' then
	return redis.error_reply('NOTCOUNT the value is not a count')
end
if head == '0' or head:match('^%-?[1-9]%d*$') then
	return reply -- it would overflow, or the server could not write
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {ARGV[1], 1}
