-- Change a session and end others.
-- KEYS: the session, the new session (the same again without a new id), then
--       two for each end.
-- ARGV: id, new id or '', prefix of the site's sessions, prefix of its
--       indexes, 1 if there are claims, claims, then three for each end.
-- Reply: {'ok', time, fields, ended}, {'absent'}, {'exists'}, {'version', v}
--        or {'malformed'}.
local id, moved = ARGV[1], ARGV[2]
local at = now()
local f, none = load(KEYS[1], at)
if not f then
  return none
end
if moved ~= '' and redis.call('EXISTS', KEYS[2]) == 1 then
  return {'exists'}
end
local idx = ARGV[4] .. f[2]
redis.call('ZSCORE', idx, id)
local ends = check_ends(3, 7, ARGV[3], at, id)

if ARGV[5] == '1' then
  f[4] = ARGV[6]
  f[5] = int((f[5] + 1) % 4294967296)
  redis.call('HSET', KEYS[1], 'c', f[4], 'cv', f[5])
end
if moved ~= '' then
  f[6], f[8] = '0', int(at)
  redis.call('HSET', KEYS[1], 'g', f[6], 're', f[8])
  redis.call('RENAME', KEYS[1], KEYS[2])
  local expires = expiry(at, tonumber(f[9]), tonumber(f[10]))
  redis.call('PEXPIREAT', KEYS[2], int(expires))
  redis.call('ZREM', idx, id)
  index(idx, moved, at, expires)
  settle(idx)
end
return {'ok', int(at), f, run_ends(ends)}
