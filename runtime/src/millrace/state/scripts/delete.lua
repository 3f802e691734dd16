#!lua flags=allow-oom
-- KEYS: stamp, set of object names, then the objects' keys; ARGV[4..]: their names.
local refusal = refuse()
if refusal then
  return refusal
end
for i = 3, #KEYS do
  redis.call('UNLINK', KEYS[i])
  redis.call('SREM', KEYS[2], ARGV[4 + (i - 3)])
end
return {'OK'}
