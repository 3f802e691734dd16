-- Put below the first line of every other script here.
-- KEYS[1] is the stamp: a hash {run_id, epoch, execution, life}. ARGV[1..3] are the run id that the
-- message is meant for, and its epoch and execution (both empty: a reader that needs no stamp).

local function own_run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- The stamp in effect. One of an earlier life of this server does not count (rule 5).
local function stamp_in_effect(run_id)
  local held = redis.call('HMGET', KEYS[1], 'run_id', 'epoch', 'execution', 'life')
  if held[1] ~= run_id then
    return nil
  end
  return {tonumber(held[2]), tonumber(held[3]), held[4] or ''}
end

local function refuse_run_id()
  if ARGV[1] ~= own_run_id() then
    return {'NOTOWNER', 'runId'}
  end
  return nil
end

local function refuse()
  local refusal = refuse_run_id()
  if refusal or ARGV[2] == '' then
    return refusal
  end
  local held = stamp_in_effect(ARGV[1])
  if not held then
    return {'NOTOWNER', 'unstamped'}
  end
  if held[1] ~= tonumber(ARGV[2]) or held[2] ~= tonumber(ARGV[3]) then
    return {'NOTOWNER', 'stamp', held[1], held[2]}
  end
  return nil
end

-- -1, 0 or 1 as tag a ("timeline.execution.epoch.seq") is below, equal to or above b (rule 2).
local function compare_tags(a, b)
  local others = string.gmatch(b, '%d+')
  for part in string.gmatch(a, '%d+') do
    local mine, other = tonumber(part), tonumber(others())
    if mine ~= other then
      return mine < other and -1 or 1
    end
  end
  return 0
end
