-- KEYS: marker. ARGV: uid, window. Windows above count as shown no more: fields are written over
-- when they come again.
local marker = KEYS[1]
if redis.call('HGET', marker, 'uid') ~= ARGV[1] then return {'FOREIGN'} end
local window = tonumber(ARGV[2])
local shown = redis.call('HGET', marker, 'window')
if shown and tonumber(shown) > window then
  for _, field in ipairs(redis.call('HKEYS', marker)) do
    local number = string.match(field, '^d:(%d+)$')
    if number and tonumber(number) > window then redis.call('HDEL', marker, field) end
  end
  redis.call('HSET', marker, 'window', ARGV[2])
end
return {'DONE'}
