#!lua flags=allow-oom
-- Rule 6: accepted when at least the current one; answers with the record in the same step.
-- KEYS: stamp, record, tag; ARGV[4] the life of whose stamp it is: another one's equal stamp is
-- refused (rule 8). Allowed when memory is full, so that a driver can come and delete.
local refusal = refuse_run_id()
if refusal then
  return refusal
end
local epoch, execution, life = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local held = stamp_in_effect(ARGV[1])
local same = held and epoch == held[1] and execution == held[2]
if (same and life ~= held[3])
    or (held and (epoch < held[1] or (epoch == held[1] and execution < held[2]))) then
  return {'NOTOWNER', 'stamp', held[1], held[2]}
end
redis.call(
  'HSET', KEYS[1], 'run_id', ARGV[1], 'epoch', ARGV[2], 'execution', ARGV[3], 'life', life)
return {'STAMPED', redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3])}
