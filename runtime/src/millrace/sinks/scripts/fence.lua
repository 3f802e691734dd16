-- KEYS: marker. ARGV: uid, execution. Refuses lower executions from now on.
local found = redis.call('HMGET', KEYS[1], 'uid', 'execution')
if found[1] ~= ARGV[1] then return {'FOREIGN'} end
if found[2] and tonumber(found[2]) > tonumber(ARGV[2]) then return {'FENCED', found[2]} end
redis.call('HSET', KEYS[1], 'execution', ARGV[2])
return {'OK'}
