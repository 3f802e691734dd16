#!lua flags=no-writes
-- KEYS: stamp, set of object names.
local refusal = refuse()
if refusal then
  return refusal
end
return {'OK', redis.call('SMEMBERS', KEYS[2])}
