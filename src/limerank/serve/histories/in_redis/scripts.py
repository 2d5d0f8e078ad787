"""What Redis does for us in one step each, in its language.

Every script is given the store first, and the key of its digests: where another store stands meanwhile (somebody
flushed the database), it changes nothing and answers nil. `nonce` is new with every call: versions made of it never
come again, also when a server that failed over or was restored has forgotten some.
"""

from __future__ import annotations

from limerank.serve.histories.in_redis.layout import ID_FIRST, ID_LAST

MOST_STATES = 16
"""States of one user, of several bundles and contexts; beyond that they are begun anew."""

_BEGIN = """
local salt = ARGV[1]
if redis.call('HGET', KEYS[1], 'salt') ~= salt then return false end
local AT_ONCE = 500
local function id_of(record) return string.sub(record, FIRST, LAST) end
local function records_of(events, fields)
  local found = {}
  for first = 1, #fields, AT_ONCE do
    local part = redis.call('HMGET', events, unpack(fields, first, math.min(first + AT_ONCE - 1, #fields)))
    for n = 1, #part do found[first + n - 1] = part[n] end
  end
  return found
end
local function append(result, fields, records)
  for n = 1, #fields do
    result[#result + 1] = fields[n]
    result[#result + 1] = records[n]
  end
  return result
end
""".replace("FIRST", str(ID_FIRST)).replace("LAST", str(ID_LAST))

_DELETING = """
local function delete(events, sorted, fields)
  local records, bytes = records_of(events, fields), 0
  for n, field in ipairs(fields) do
    if records[n] then
      redis.call('SREM', KEYS[2], id_of(records[n]))
      bytes = bytes + #records[n]
    end
    redis.call('HDEL', events, field)
    redis.call('ZREM', sorted, field)
  end
  if bytes > 0 then redis.call('HINCRBY', KEYS[1], 'bytes', -bytes) end
end
"""

BEGIN = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'salt', ARGV[2], 'bytes', 0)
end
return redis.call('HMGET', KEYS[1], 'format', 'salt')
"""
"""Make a store unless there is one. KEYS: store. ARGV: format, salt."""

ADD = (
    _BEGIN
    + _DELETING
    + """
local nonce, cap, most = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local too_old, users = tonumber(ARGV[5]), tonumber(ARGV[6])
local known, outcomes, bytes = {}, {}, 0
for number = 1, users do
  local first = 5 + 4 * (number - 1)
  local facts = redis.call('HMGET', KEYS[first + 1], 'sequence', 'erased_at')
  known[number] = {user = KEYS[first + 1], events = KEYS[first + 2], read = KEYS[first + 3], others = KEYS[first + 4],
    sequence = tonumber(facts[1]) or 0, erased = tonumber(facts[2]) or -1, new = not facts[1], reads = 0, adds = 0}
end
for at = 7 + 2 * users, #ARGV, 3 do
  local one, time, record = known[tonumber(ARGV[at])], tonumber(ARGV[at + 1]), ARGV[at + 2]
  if time < too_old or time <= one.erased then
    outcomes[#outcomes + 1] = 'f'
  elseif redis.call('SADD', KEYS[2], id_of(record)) == 0 then
    outcomes[#outcomes + 1] = 'd'
  else
    one.sequence, one.adds = one.sequence + 1, one.adds + 1
    local field, sorted = string.format('%012.0f', one.sequence), one.others
    if string.byte(record, 5) == 1 then one.reads, sorted = one.reads + 1, one.read end
    redis.call('HSET', one.events, field, record)
    redis.call('ZADD', sorted, ARGV[at + 1], field)
    bytes = bytes + #record
    if not one.low or time < one.low then one.low, one.oldest = time, ARGV[at + 1] end
    outcomes[#outcomes + 1] = 'a'
  end
end
if bytes > 0 then redis.call('HINCRBY', KEYS[1], 'bytes', bytes) end
for number, one in ipairs(known) do
  local digest, id = ARGV[5 + 2 * number], ARGV[6 + 2 * number]
  if one.adds > 0 then
    redis.call('HSET', one.user, 'id', id, 'sequence', string.format('%.0f', one.sequence))
    if one.new or one.reads > 0 then redis.call('HSET', one.user, 'version', nonce) end
    if one.new then redis.call('HSET', one.user, 'epoch', nonce) end
    redis.call('ZADD', KEYS[3], 0, id)
    redis.call('ZADD', KEYS[4], 'LT', one.oldest, digest)
    for _, sorted in ipairs({one.read, one.others}) do
      local count = redis.call('ZCARD', sorted)
      if count > most then
        delete(one.events, sorted, redis.call('ZRANGE', sorted, 0, count - cap - 1))
        if sorted == one.read then redis.call('HSET', one.user, 'version', nonce, 'epoch', nonce) end
      end
    end
  end
end
return table.concat(outcomes)
"""
)
"""Store events. KEYS: the shared ones, then those of each user. ARGV: salt, nonce, cap, events from which on a user is
trimmed to it, the oldest time, the number of users, digest and id of each; then for each event the number of its user,
its time and its record. A letter for each event: accepted, duplicate or forgotten."""

READ = (
    _BEGIN
    + """
local facts = redis.call('HMGET', KEYS[2], 'version', 'epoch', 'sequence', 'erased_at')
if not facts[1] then return {} end
if facts[1] == ARGV[2] and facts[2] == ARGV[3] then return {facts[1]} end
local count, since = redis.call('ZCARD', KEYS[4]), tonumber(facts[3]) - (tonumber(ARGV[6]) or 0)
local result = {facts[1], facts[2], facts[3], facts[4] or '', count, 'all'}
if facts[2] == ARGV[3] and ARGV[4] ~= '' and since <= 2 * count then
  local last = redis.call('HGET', KEYS[3], ARGV[4])
  if last and id_of(last) == ARGV[5] then
    local fields, kept = {}, {}
    for n = tonumber(ARGV[6]) + 1, tonumber(facts[3]) do fields[#fields + 1] = string.format('%012.0f', n) end
    local records = records_of(KEYS[3], fields)
    result[6] = 'new'
    for n = 1, #fields do
      if records[n] and string.byte(records[n], 5) == 1 then
        result[#result + 1] = fields[n]
        result[#result + 1] = records[n]
      end
    end
    return result
  end
end
local fields = redis.call('ZRANGE', KEYS[4], 0, -1)
return append(result, fields, records_of(KEYS[3], fields))
"""
)
"""What rankers read of a user, or what of it is new. KEYS: store, user, events, read. ARGV: salt, then what is known:
version, epoch, the newest sequence and its id, and the sequence up to which all was read. Nothing for nobody, the
version alone if nothing changed."""

OF_USER = (
    _BEGIN
    + """
local result = {redis.call('HLEN', KEYS[3]), redis.call('ZCARD', KEYS[4]) + redis.call('ZCARD', KEYS[5])}
for _, sorted in ipairs({KEYS[4], KEYS[5]}) do
  local fields = redis.call('ZREVRANGEBYSCORE', sorted, '+inf', ARGV[2], 'LIMIT', 0, ARGV[3])
  local records = records_of(KEYS[3], fields)
  if ARGV[4] == 'verify' then
    for n = 1, #fields do
      if not records[n] or redis.call('SISMEMBER', KEYS[6], id_of(records[n])) == 0 then return {-1, 0} end
    end
  end
  append(result, fields, records)
end
return result
"""
)
"""A user's newest events of either kind. KEYS: store, user, events, read, others, ids. ARGV: salt, the oldest time, how
many of each kind, and `verify` or nothing. First the number of records and of sequences, which are equal."""

LOOK = (
    _BEGIN
    + """
local facts = redis.call('HMGET', KEYS[2], 'version', 'erased_at')
if not facts[1] then return {} end
return {redis.call('ZCARD', KEYS[3]), facts[2] or ''}
"""
)
"""How many events rankers read of a user, and when the user was erased. KEYS: store, user, read. ARGV: salt."""

ERASE = (
    _BEGIN
    + """
local facts = redis.call('HMGET', KEYS[6], 'id', 'erased_at', 'sequence')
local records, bytes = redis.call('HVALS', KEYS[7]), 0
for _, record in ipairs(records) do
  redis.call('SREM', KEYS[2], id_of(record))
  bytes = bytes + #record
end
if bytes > 0 then redis.call('HINCRBY', KEYS[1], 'bytes', -bytes) end
redis.call('DEL', KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10])
if facts[1] then redis.call('ZREM', KEYS[3], facts[1]) end
redis.call('ZREM', KEYS[4], ARGV[3])
local at = ARGV[4]
if facts[2] and tonumber(facts[2]) > tonumber(at) then at = facts[2] end
redis.call('HSET', KEYS[6], 'version', ARGV[2], 'epoch', ARGV[2], 'sequence', facts[3] or 0, 'erased_at', at)
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[5], string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)), ARGV[3])
return {at, #records}
"""
)
"""Delete a user up to a time. KEYS: the shared ones, the user's, the states'. ARGV: salt, nonce, digest, time."""

KEEP = (
    _BEGIN
    + """
if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[2] then return 0 end
local of = redis.call('HGET', KEYS[3], 'of')
local before = {}
if of and (of ~= ARGV[2] or redis.call('HLEN', KEYS[3]) > MOST) then
  before = redis.call('HKEYS', KEYS[3])
  of = false
end
redis.call('HSET', KEYS[3], 'of', ARGV[2], ARGV[3], ARGV[4])
for _, name in ipairs(before) do
  if name ~= 'of' and name ~= ARGV[3] then redis.call('HDEL', KEYS[3], name) end
end
if not of then redis.call('EXPIRE', KEYS[3], ARGV[5]) end
return 1
""".replace("MOST", str(MOST_STATES))
)
"""Keep a finished state of a user who is still as it was made of; those of before go. All of a user's go together, the
seconds after the first. KEYS: store, user, states. ARGV: salt, the user's version, name, state, seconds. Nothing is
written first that a server with full memory would allow, as deleting is: it asks at the first command only."""

EXPIRE = (
    _BEGIN
    + _DELETING
    + """
local gone, low = 0, nil
for _, sorted in ipairs({KEYS[8], KEYS[9]}) do
  local fields = redis.call('ZRANGEBYSCORE', sorted, '-inf', '(' .. ARGV[4], 'LIMIT', 0, ARGV[5])
  if #fields > 0 then
    delete(KEYS[7], sorted, fields)
    gone = gone + #fields
    if sorted == KEYS[8] then
      redis.call('HSET', KEYS[6], 'version', ARGV[2], 'epoch', ARGV[2])
      redis.call('DEL', KEYS[10])
    end
  end
  local first = redis.call('ZRANGE', sorted, 0, 0, 'WITHSCORES')
  if first[2] and (not low or tonumber(first[2]) < tonumber(low)) then low = first[2] end
end
if low then
  redis.call('ZADD', KEYS[4], low, ARGV[3])
  return gone
end
redis.call('ZREM', KEYS[4], ARGV[3])
local facts = redis.call('HMGET', KEYS[6], 'id', 'erased_at')
if facts[1] then redis.call('ZREM', KEYS[3], facts[1]) end
if facts[2] then redis.call('HDEL', KEYS[6], 'id') else redis.call('DEL', KEYS[6]) end
return gone
"""
)
"""Delete some of a user's events before a time. KEYS: the shared ones, the user's, the states'. ARGV: salt, nonce,
digest, time, how many of each kind at most."""
