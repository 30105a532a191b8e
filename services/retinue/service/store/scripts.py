"""What Redis does in one piece: the Lua behind every write that depends on what stands there.

Each script touches the keys it is given, all of one slot, and nothing else; it never reads the clients' clocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest under which Redis caches it."""

    body: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest())


# A lease is a hash of owner, token and until (microseconds of Redis' clock). It outlives its end by a day, so
# that its token grows also when the clock was set back; past that, the clock itself makes the token grow.
_LEASES = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function holder(key)
  local lease = redis.call('HMGET', key, 'owner', 'token', 'until')
  if lease[1] and tonumber(lease[3]) > now() then return lease[1], lease[2] end
  return false, lease[2]
end
local function held(key, owner, token)
  local present, number = holder(key)
  return present == owner and number == token
end
local function extend(key, ttl)
  redis.call('HSET', key, 'until', string.format('%.0f', now() + ttl * 1000))
  redis.call('PEXPIRE', key, ttl + 86400000)
end
"""

# KEYS: log, and the lease's when there is one. ARGV: expected length, ttl (ms), owner, token, entries...
APPEND = Script(
    _LEASES
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

# KEYS: record. ARGV: expected value, new value, ttl (ms) or ''.
PUT = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[3] == '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
""")

# KEYS: table. ARGV: row, expected value, new value.
PUT_ROW = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
""")

# KEYS: lease. ARGV: owner, ttl (ms).
ACQUIRE = Script(
    _LEASES
    + """
local present, token = holder(KEYS[1])
if present and present ~= ARGV[1] then return false end
if not present then
  token = string.format('%.0f', math.max((tonumber(token) or 0) + 1, now()))
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', token)
end
extend(KEYS[1], ARGV[2])
return token
"""
)

# KEYS: lease. ARGV: owner, token, ttl (ms).
RENEW = Script(
    _LEASES
    + """
if not held(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
extend(KEYS[1], ARGV[3])
return 1
"""
)

# KEYS: lease. ARGV: owner, token.
RELEASE = Script(
    _LEASES
    + """
if held(KEYS[1], ARGV[1], ARGV[2]) then redis.call('HDEL', KEYS[1], 'owner', 'until') end
return 1
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
