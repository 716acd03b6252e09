-- Decides a whole batch of requests in one atomic step.
--
-- KEYS  the distinct counts of the batch. A value is "<end>:<count>": the end
--       of the window in milliseconds since the epoch, what was charged to it.
-- ARGV  how many limits follow, then for each: window in milliseconds, events,
--       1 if advisory or 0;
--       then for each group of equal requests: how many requests, how many
--       limits each has, then for each of those: key, limit (both counted from
--       1), cost. The keys of one group are distinct.
--
-- Returns for each group: how many of its requests are admitted, -1 when one
-- of its keys holds something else than a count; then for each of its limits
-- the count before the group and the milliseconds until the window ends.
--
-- Everything is an integer below 2^53, which a double holds exactly. Nothing
-- is written for a refused request, and nothing before all is decided.

local floor, max, min, match = math.floor, math.max, math.min, string.match

local time = redis.call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)

local window, events, advisory = {}, {}, {}
local at = 2
for l = 1, tonumber(ARGV[1]) do
  window[l] = tonumber(ARGV[at])
  events[l] = tonumber(ARGV[at + 1])
  advisory[l] = ARGV[at + 2] == '1'
  at = at + 3
end

local count, finish, changed = {}, {}, {} -- by key; count is false for what is not ours

local answer = {}
while at <= #ARGV do
  local requests, limits = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local first, last = at + 2, at + 1 + 3 * limits
  local granted = requests

  for a = first, last, 3 do
    local k, l, cost = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
    if count[k] == nil then
      local length = window[l]
      local ends = (floor(now / length) + 1) * length
      count[k], finish[k] = 0, ends
      local value = redis.pcall('GET', KEYS[k])
      if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
          return value
        end
        count[k] = false
      elseif value then
        local e, c = match(value, '^(%d+):(%d+)$')
        e, c = tonumber(e), tonumber(c)
        if not e or e > 9007199254740991 or c > 9007199254740991 then
          count[k] = false
        elseif e == ends or e == ends + length then
          -- The window just ahead stays in force: the clock was set back.
          count[k], finish[k] = c, e
        end
      end
    end
    if not count[k] then
      granted = -1
    elseif granted > 0 and cost > 0 and not advisory[l] then
      granted = min(granted, floor(max(events[l] - count[k], 0) / cost))
    end
  end

  answer[#answer + 1] = granted
  for a = first, last, 3 do
    local k, l, cost = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
    answer[#answer + 1] = count[k] or 0
    answer[#answer + 1] = finish[k] - now
    if granted > 0 and cost > 0 then
      local charged = granted
      if advisory[l] then
        charged = min(granted, floor(max(events[l] - count[k], 0) / cost))
      end
      if charged > 0 then
        count[k] = count[k] + charged * cost
        changed[k] = true
      end
    end
  end
  at = last + 1
end

for k = 1, #KEYS do
  if changed[k] then
    redis.call('SET', KEYS[k], string.format('%.0f:%.0f', finish[k], count[k]), 'PX', finish[k] - now + 1000)
  end
end
return answer
