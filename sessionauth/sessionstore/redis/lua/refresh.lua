-- Move a session to its next generation.
-- KEYS: the session.
-- ARGV: id, prefix of the site's indexes, generation seen, lifetime, device,
--       address.
-- Reply: {'ok', time, fields}, {'absent'}, {'conflict'}, {'version', v} or
--        {'malformed'}.
local at = now()
local f, none = load(KEYS[1], at)
if not f then
  return none
end
if f[6] ~= ARGV[3] then
  return {'conflict'}
end
local idx = ARGV[2] .. f[2]
redis.call('ZSCORE', idx, ARGV[1])

f[6] = int((f[6] + 1) % 4294967296)
f[8], f[9], f[12], f[13] = int(at), ARGV[4], ARGV[5], ARGV[6]
redis.call('HSET', KEYS[1], 'g', f[6], 're', f[8], 'l', f[9], 'd', f[12], 'i', f[13])
local expires = expiry(at, tonumber(f[9]), tonumber(f[10]))
redis.call('PEXPIREAT', KEYS[1], int(expires))
index(idx, ARGV[1], at, expires)
settle(idx)
return {'ok', int(at), f}
