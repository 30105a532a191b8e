"""What Redis does in one piece: the Lua behind every write that depends on what stands there.

Each script touches the keys it is given, all of one slot, and nothing else; it never reads the clients' clocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from retinue.service.store import REMEMBERED_S


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest under which Redis caches it."""

    body: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest())


# A lease is a hash: owner, claim, lapsed, token and until (microseconds of Redis' clock), and line, which is JSON:
# rows of owner, claim and until, the last a text because cjson keeps 14 digits. A release leaves token and line.
# The hash outlives every until in it, so that its token grows also when the clock was set back; past that, the clock
# itself makes the token grow.
_FENCE = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function held(key, owner, token)
  local lease = redis.call('HMGET', key, 'owner', 'token', 'until')
  return lease[1] == owner and lease[2] == token and tonumber(lease[3]) > now()
end
"""
_LEASES = (
    _FENCE
    + f"local remembered = {REMEMBERED_S * 1000:.0f}"
    + """
local present = now()
local function alive(till) return till and tonumber(till) > present end
local function text(number) return string.format('%.0f', number) end
local function after(ttl) return text(present + ttl * 1000) end
local function remember(key, ttl)
  local left = ttl + remembered
  if redis.call('PTTL', key) < left then redis.call('PEXPIRE', key, left) end
end
local function waiting(json)
  local line = {}
  for _, place in ipairs(json and cjson.decode(json) or {}) do
    if alive(place[3]) then line[#line + 1] = place end
  end
  return line
end
local function find(line, column, value)
  for index, place in ipairs(line) do
    if place[column] == value then return index end
  end
end
local function write(key, line)
  if line[1] then redis.call('HSET', key, 'line', cjson.encode(line)) else redis.call('HDEL', key, 'line') end
end
"""
)

# KEYS: log, and the lease's when there is one. ARGV: expected length, ttl (ms), owner, token, entries...
APPEND = Script(
    _FENCE
    + """
local log, first = KEYS[1], 5
if KEYS[2] and not held(KEYS[2], ARGV[3], ARGV[4]) then return {'fenced', 0} end
local length, count = redis.call('LLEN', log), #ARGV - first + 1
local at = tonumber(ARGV[1]) or length
if at == length then
  for i = first, #ARGV, 1000 do
    length = redis.call('RPUSH', log, unpack(ARGV, i, math.min(i + 999, #ARGV)))
  end
else
  if at < 0 or at + count > length then return {'conflict', length} end
  local there = redis.call('LRANGE', log, at, at + count - 1)
  for i = 1, count do
    if there[i] ~= ARGV[first + i - 1] then return {'conflict', length} end
  end
end
if ARGV[2] ~= '' then redis.call('PEXPIRE', log, ARGV[2]) end
return {'done', length}
"""
)

# KEYS: log. ARGV: start, stop or ''. Indices mean what they mean in a Python slice.
READ = Script("""
local length = redis.call('LLEN', KEYS[1])
local function index(text)
  local number = tonumber(text) or length
  if number < 0 then number = number + length end
  return math.max(0, math.min(number, length))
end
local start, stop = index(ARGV[1]), index(ARGV[2])
if start >= stop then return {length, start, {}} end
return {length, start, redis.call('LRANGE', KEYS[1], start, stop - 1)}
""")

# KEYS: record, and the lease's when there is one. ARGV: what is expected ('value', 'nothing' or 'anything') and the
# value, new value, ttl (ms) or '', owner, token.
PUT = Script(
    _FENCE
    + """
if KEYS[2] and not held(KEYS[2], ARGV[5], ARGV[6]) then return 'fenced' end
local expected = ARGV[1] == 'value' and ARGV[2]
if ARGV[1] ~= 'anything' and redis.call('GET', KEYS[1]) ~= expected then return 'conflict' end
if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[3]) else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end
return 'done'
"""
)

# KEYS: lease, what is to go... ARGV: owner, token.
DELETE = Script(
    _FENCE
    + """
if not held(KEYS[1], ARGV[1], ARGV[2]) then return {'fenced', 0} end
return {'done', redis.call('DEL', unpack(KEYS, 2))}
"""
)

# KEYS: table. ARGV: row, what is expected and its value as in PUT, new value, ttl (ms) or ''.
PUT_ROW = Script("""
local expected = ARGV[2] == 'value' and ARGV[3]
if ARGV[2] ~= 'anything' and redis.call('HGET', KEYS[1], ARGV[1]) ~= expected then return 'conflict' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
if ARGV[5] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
return 'done'
""")

# KEYS: lease. ARGV: owner, claim, ttl (ms), the most that may wait or '', 1 for one who comes anew.
ACQUIRE = Script(
    _LEASES
    + """
local key, owner, claim, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local was = redis.call('HMGET', key, 'owner', 'until', 'token', 'lapsed', 'claim', 'line')
local holder = alive(was[2]) and was[1]
if holder == owner then
  redis.call('HSET', key, 'until', after(ttl))
  remember(key, ttl)
  return {'lease', was[3], was[4]}
end
local line = waiting(was[6])
local mine = find(line, 1, owner)
if mine then line[mine] = {owner, claim, after(ttl)} end
if not mine and ARGV[5] ~= '1' then return false end
if not holder then
  local turn = line[1] and 1
  if was[5] and was[5] ~= '' then turn = find(line, 2, was[5]) or claim ~= was[5] and turn end
  if not turn or turn == mine then
    local token, lapsed = text(math.max((tonumber(was[3]) or 0) + 1, present)), was[1] and 1 or 0
    redis.call('HSET', key, 'owner', owner, 'claim', claim, 'lapsed', lapsed, 'token', token, 'until', after(ttl))
    if mine then table.remove(line, mine) end
    if was[6] then write(key, line) end
    remember(key, ttl)
    return {'lease', token, lapsed}
  end
end
if not mine then
  if #line >= (tonumber(ARGV[4]) or math.huge) then return false end
  line[#line + 1] = {owner, claim, after(ttl)}
  mine = #line
end
write(key, line)
remember(key, ttl)
return {'place', mine - 1}
"""
)

# KEYS: lease. ARGV: owner, token, ttl (ms).
RENEW = Script(
    _LEASES
    + """
if not held(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'until', after(ARGV[3]))
remember(KEYS[1], ARGV[3])
return 1
"""
)

# KEYS: lease. ARGV: owner.
RELEASE = Script(
    _LEASES
    + """
local was = redis.call('HMGET', KEYS[1], 'owner', 'until', 'line')
if was[1] == ARGV[1] and alive(was[2]) then redis.call('HDEL', KEYS[1], 'owner', 'until', 'claim', 'lapsed') end
if was[3] then
  local line = waiting(was[3])
  local mine = find(line, 1, ARGV[1])
  if mine then table.remove(line, mine) end
  write(KEYS[1], line)
end
return nil
"""
)

# KEYS: lease. Returns its holder or '', then who waits.
LINE = Script(
    _LEASES
    + """
local was = redis.call('HMGET', KEYS[1], 'owner', 'until', 'line')
local owners = {alive(was[2]) and was[1] or ''}
for _, place in ipairs(waiting(was[3])) do owners[#owners + 1] = place[1] end
return owners
"""
)

# KEYS: counter. ARGV: amount, limit or '', ttl (ms) or ''.
TAKE = Script("""
local sum = (tonumber(redis.call('GET', KEYS[1])) or 0) + ARGV[1]
if ARGV[2] ~= '' and sum > tonumber(ARGV[2]) then return false end
sum = redis.call('INCRBY', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return sum
""")

# In the order of this file.
ALL = (APPEND, READ, PUT, DELETE, PUT_ROW, ACQUIRE, RENEW, RELEASE, LINE, TAKE)
