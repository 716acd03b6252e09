-- Get a session.
-- KEYS: the session.
-- Reply: {'ok', time, fields}, {'absent'}, {'version', v} or {'malformed'}.
local at = now()
local f, none = load(KEYS[1], at)
if not f then
  return none
end
return {'ok', int(at), f}
