-- Behind check.lua. ARGV[6]: mode. hash: number of fields, field names, then for each row its key and
-- values. stream: name, number of fields, field names, then the values of each row. A value is
-- "=text", or "-" for null. Everything that could fail is looked at before the first write, since a
-- script that fails half-way is not taken back.
local mode = ARGV[6]

local function fields_of(row, names, values)
  local present, absent = {}, {}
  for i = 1, names do
    local value = ARGV[row + i]
    if string.byte(value) == 61 then
      present[#present + 1] = ARGV[values + i]
      present[#present + 1] = string.sub(value, 2)
    else
      absent[#absent + 1] = ARGV[values + i]
    end
  end
  return present, absent
end

if mode == 'hash' then
  local names = tonumber(ARGV[7])
  local width = names + 1
  local first = 8 + names
  for row = first, #ARGV, width do
    if string.sub(ARGV[row], 1, 9) == 'millrace:' then return {'OWN', ARGV[row]} end
    local kind = redis.call('TYPE', ARGV[row]).ok
    if kind ~= 'hash' and kind ~= 'none' then return {'TYPE', ARGV[row]} end
  end
  -- By these a clearing knows its own hashes from others whose keys look alike.
  for i = 8, 7 + names do redis.call('HSET', marker, 'f:' .. ARGV[i], '1') end
  for row = first, #ARGV, width do
    local present, absent = fields_of(row, names, 7)
    if #present > 0 then redis.call('HSET', ARGV[row], unpack(present)) end
    if #absent > 0 then redis.call('HDEL', ARGV[row], unpack(absent)) end
  end
else
  local stream = ARGV[7]
  local names = tonumber(ARGV[8])
  local kind = redis.call('TYPE', stream).ok
  if kind ~= 'stream' and kind ~= 'none' then return {'TYPE', stream} end
  if kind == 'stream' then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        local last = info[i + 1]
        if tonumber(string.match(last, '^%d+')) >= window then return {'AHEAD', last} end
      end
    end
  end
  local number = 0
  for row = 8 + names, #ARGV - 1, math.max(names, 1) do
    number = number + 1
    local present = fields_of(row, names, 8)
    if #present == 0 then present = {ARGV[9], ''} end
    redis.call('XADD', stream, ARGV[3] .. '-' .. number, unpack(present))
  end
end

redis.call('HSET', marker, 'window', ARGV[3], 'd:' .. ARGV[3], ARGV[4])
redis.call('HDEL', marker, 'd:' .. (window - tonumber(ARGV[5])))
return {'OK'}
