-- Create a session and end others.
-- KEYS: the session, its user's index, then two for each end.
-- ARGV: id, prefix of the site's sessions, owner, user, claims, lifetime,
--       absolute lifetime or 0, persistent, device, address, then three for
--       each end.
-- Reply: {'ok', time, fields, ended} or {'exists'}.
local id, records = ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {'exists'}
end
redis.call('ZSCORE', KEYS[2], id)
local at = now()
local ends = check_ends(3, 11, records, at) -- before the new session is there: it is not among them

local til = 0
if ARGV[7] ~= '0' then
  til = at + ARGV[7]
end
local f = {'1', ARGV[3], ARGV[4], ARGV[5], '1', '0', int(at), int(at), ARGV[6], int(til), ARGV[8], ARGV[9], ARGV[10]}
local set = {}
for i, name in ipairs(FIELDS) do
  set[2 * i - 1], set[2 * i] = name, f[i]
end
redis.call('HSET', KEYS[1], unpack(set))
local expires = expiry(at, tonumber(ARGV[6]), til)
redis.call('PEXPIREAT', KEYS[1], int(expires))
index(KEYS[2], id, at, expires)
settle(KEYS[2])
return {'ok', int(at), f, run_ends(ends)}
