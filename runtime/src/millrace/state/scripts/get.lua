#!lua flags=no-writes
-- KEYS: stamp, then the objects' keys. False stands for an object that is not there.
local refusal = refuse()
if refusal then
  return refusal
end
local found = {'OK'}
for i = 2, #KEYS do
  found[i] = redis.call('GET', KEYS[i])
end
return found
