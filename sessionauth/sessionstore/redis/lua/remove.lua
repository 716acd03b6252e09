-- End the session with an id, whoever owns it.
-- KEYS: the session.
-- ARGV: id, prefix of the site's indexes.
-- Reply: {'ok', user} or {'absent'}.
local f = redis.call('HMGET', KEYS[1], 'o', 'u')
local alive
if f[1] then
  local idx = ARGV[2] .. f[1]
  redis.call('ZSCORE', idx, ARGV[1])
  alive = drop(KEYS[1], idx, ARGV[1])
  settle(idx)
else
  alive = redis.call('DEL', KEYS[1]) == 1
end
if not alive then
  return {'absent'}
end
return {'ok', f[2] or ''}
