#!lua
-- KEYS: stamp, set of object names, then the objects' keys; ARGV[4..]: name, content, ...
local refusal = refuse()
if refusal then
  return refusal
end
for i = 3, #KEYS do
  local at = 4 + (i - 3) * 2
  redis.call('SET', KEYS[i], ARGV[at + 1])
  redis.call('SADD', KEYS[2], ARGV[at])
end
return {'OK'}
