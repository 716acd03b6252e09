-- Shared by all scripts: it stands before each of them.
--
-- A session is a hash:
--   v   format version, "1"
--   o   owner: the last part of the key of its user's index
--   u c cv g cr re l x p d i
--       user, claims, claims version, generation, created, refreshed,
--       lifetime, absolute end (0: none), persistent (0 or 1), device, address
-- v and o keep their meaning in every version, so a session can be ended by a
-- gateway that cannot read it. Times are milliseconds.
--
-- An index is a sorted set: the ids of a user's sessions by their expiry.
--
-- Scripts read and check before they write, and their first write is one that
-- a full server refuses: then nothing was changed.

local FIELDS = {'v', 'o', 'u', 'c', 'cv', 'g', 'cr', 're', 'l', 'x', 'p', 'd', 'i'}
local NUMBERS = {5, 6, 7, 8, 9, 10}

-- now returns the server's time in milliseconds.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- int writes a number without exponent or fraction.
local function int(n)
  return string.format('%.0f', n)
end

-- expiry returns when a session expires: the earlier of its two ends.
local function expiry(refreshed, lifetime, til)
  local at = refreshed + lifetime
  if til > 0 and til < at then
    return til
  end
  return at
end

-- load returns a live session's fields in order, or nil and the reply that
-- says why there are none.
local function load(key, at)
  local f = redis.call('HMGET', key, unpack(FIELDS))
  if not f[1] then
    if redis.call('EXISTS', key) == 0 then
      return nil, {'absent'}
    end
    return nil, {'malformed'}
  end
  if f[1] ~= '1' then
    return nil, {'version', f[1]}
  end
  for i = 1, #FIELDS do
    if not f[i] then
      return nil, {'malformed'}
    end
  end
  if #f[2] ~= 32 then
    return nil, {'malformed'}
  end
  for _, i in ipairs(NUMBERS) do
    if #f[i] > 15 or not string.match(f[i], '^%d+$') then
      return nil, {'malformed'}
    end
  end
  if expiry(tonumber(f[8]), tonumber(f[9]), tonumber(f[10])) <= at then
    return nil, {'absent'}
  end
  return f
end

-- index enters a session that expires at a time, and forgets expired ones.
local function index(key, id, at, expires)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', int(at))
  redis.call('ZADD', key, int(expires), id)
end

-- settle lets an index live as long as its last session.
local function settle(key)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if last[2] then
    redis.call('PEXPIREAT', key, last[2])
  end
end

-- drop deletes a session with its entry and reports whether it was alive.
local function drop(record, idx, id)
  local alive = redis.call('PTTL', record)
  redis.call('DEL', record)
  redis.call('ZREM', idx, id)
  return alive > 0 or alive == -1
end

-- members returns the ids in an index that have not expired.
local function members(key, at)
  return redis.call('ZRANGEBYSCORE', key, '(' .. int(at), '+inf')
end

-- owned reports whether a session belongs to an owner: by the owner's index, so
-- that also one whose content is broken can be ended, else by the session
-- itself, in case the index was lost.
local function owned(record, idx, id, owner, at)
  local expires = redis.call('ZSCORE', idx, id)
  if expires and tonumber(expires) > at then
    return true
  end
  return redis.pcall('HGET', record, 'o') == owner
end

-- check_ends reads the ends: at KEYS[k] the index and the record of each (the
-- index again for all of a user), at ARGV[a] the owner, the id or '' for all,
-- and the id to except or ''. The session with the id kept is left out. It
-- touches every index once, so that one of a foreign type stops the script
-- before it has written. It returns a list of {number of the end, index,
-- record, id}.
local function check_ends(k, a, records, at, kept)
  local list = {}
  local n = 0
  while KEYS[k] do
    n = n + 1
    local owner, id, except = ARGV[a], ARGV[a + 1], ARGV[a + 2]
    if id == '' then
      for _, member in ipairs(members(KEYS[k], at)) do
        if member ~= except and member ~= kept then
          list[#list + 1] = {n, KEYS[k], records .. member, member}
        end
      end
    elseif id ~= kept and owned(KEYS[k + 1], KEYS[k], id, owner, at) then
      list[#list + 1] = {n, KEYS[k], KEYS[k + 1], id}
    end
    k = k + 2
    a = a + 3
  end
  return list
end

-- run_ends ends what check_ends found and returns the living among them as
-- {number of the end, id, ...}.
local function run_ends(list)
  local ended = {}
  for _, e in ipairs(list) do
    if drop(e[3], e[2], e[4]) then
      ended[#ended + 1] = e[1]
      ended[#ended + 1] = e[4]
    end
    settle(e[2])
  end
  return ended
end
