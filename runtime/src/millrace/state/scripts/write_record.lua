#!lua flags=allow-oom
-- Rule 7: under the equal stamp, with a tag above the stored one.
-- KEYS: stamp, record, tag; ARGV[4] the tag, ARGV[5] the record. Allowed when memory is full:
-- it is small, and what frees memory (marking, forgetting) needs it.
local refusal = refuse()
if refusal then
  return refusal
end
local stored = redis.call('GET', KEYS[3])
local order = stored and compare_tags(ARGV[4], stored) or 1
if order <= 0 then
  if order == 0 then
    -- A repetition. Written again so that a wait for the fsync on this connection covers it.
    redis.call('SET', KEYS[3], stored)
  end
  return {'TAGTOOLOW', stored}
end
redis.call('SET', KEYS[2], ARGV[5])
redis.call('SET', KEYS[3], ARGV[4])
return {'OK'}
