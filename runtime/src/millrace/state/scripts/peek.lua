#!lua flags=no-writes
-- The record, for a reader. KEYS: stamp, record, tag.
local refusal = refuse_run_id()
if refusal then
  return refusal
end
return {'STAMPED', redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3])}
