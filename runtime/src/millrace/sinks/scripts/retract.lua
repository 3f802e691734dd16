-- KEYS: marker. ARGV: uid, window, execution. Windows above count as shown no more: fields are
-- written over when they come again.
local marker = KEYS[1]
local found = redis.call('HMGET', marker, 'uid', 'execution')
if found[1] ~= ARGV[1] then return {'FOREIGN'} end
if found[2] and tonumber(found[2]) > tonumber(ARGV[3]) then return {'FENCED', found[2]} end
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
