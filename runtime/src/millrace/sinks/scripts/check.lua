-- KEYS: marker. ARGV: uid, execution, window, digest, windows kept, and for publish.lua more.
-- Whether this execution may show this window, and whether it is shown already. publish.lua goes on
-- behind it in the same script.
local marker = KEYS[1]
local window = tonumber(ARGV[3])

local function check()
  local found = redis.call('HMGET', marker, 'uid', 'execution', 'window', 'd:' .. ARGV[3])
  if found[1] ~= ARGV[1] then return {'FOREIGN'} end
  if found[2] and tonumber(found[2]) > tonumber(ARGV[2]) then return {'FENCED', found[2]} end
  if found[4] and found[4] ~= ARGV[4] then return {'CONFLICT', found[4]} end
  if found[3] and tonumber(found[3]) >= window then
    local kept = tonumber(found[3]) - tonumber(ARGV[5])
    if not found[4] and window > kept then return {'SKIPPED', found[3]} end
    -- Written again: who waits for the disk waits for what this connection wrote, and who wrote it
    -- first may not have waited to the end.
    redis.call('HSET', marker, 'window', found[3])
    return {'DONE'}
  end
  return nil
end

local refused = check()
if refused then return refused end
if #ARGV < 6 then return {'OK'} end
