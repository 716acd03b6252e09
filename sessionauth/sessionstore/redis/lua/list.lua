-- List a user's sessions.
-- KEYS: the user's index.
-- ARGV: prefix of the site's sessions.
-- Reply: {'ok', {id, fields, ...}, versions}, or {'malformed'} when one of the
--        sessions is. versions are those that could not be read.
local at = now()
local list, versions = {}, {}
for _, id in ipairs(members(KEYS[1], at)) do
  local f, none = load(ARGV[1] .. id, at)
  if f then
    list[#list + 1] = id
    list[#list + 1] = f
  elseif none[1] == 'malformed' then
    return none
  elseif none[1] == 'version' then
    versions[#versions + 1] = none[2]
  end
end
return {'ok', list, versions}
