#!lua flags=no-writes
-- KEYS: stamp, then the objects' keys; ARGV from the fourth on: first and last byte of each one's
-- part. False stands for an object that is not there.
local refusal = refuse()
if refusal then
  return refusal
end
local found = {'OK'}
for i = 2, #KEYS do
  local part = redis.call('GETRANGE', KEYS[i], ARGV[2 * i], ARGV[2 * i + 1])
  found[i] = (part ~= '' or redis.call('EXISTS', KEYS[i]) == 1) and part
end
return found
