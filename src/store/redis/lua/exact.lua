-- What the algorithms share: exact arithmetic on whole numbers, and the time that a state is asked about.
--
-- Lua's numbers are doubles, exact up to 2^53. Times, spans and quotas stay below 2^52; products of two of them do not,
-- and are never made: multiply_divide goes from a*b to the quotient without them. All times are whole microseconds.

-- Quotient and rest of a / m, for 0 <= a <= 2^53. A plain floor(a / m) may be one too high up there.
local function divide(a, m)
  local rest = math.fmod(a, m)
  return (a - rest) / m, rest
end

local function divide_up(a, m)
  local quotient, rest = divide(a, m)
  return rest > 0 and quotient + 1 or quotient
end

-- The same of a*b / m for b < m: long multiplication, with digits so small that no step passes 2^53.
local function by_digits(a, b, m)
  local base = divide(2 ^ 53, m)
  if a < base then
    return divide(a * b, m)
  end
  local high, digit = divide(a, base)
  local quotient, rest = by_digits(high, b, m)
  local more, less
  more, rest = divide(rest * base, m)
  less, rest = divide(rest + b * digit, m)
  return quotient * base + more + less, rest
end

-- Quotient and rest of a*b / m, for m <= 2^52, and a, b and the quotient <= 2^53.
local function multiply_divide(a, b, m)
  local times, left = divide(b, m)
  local quotient, rest = by_digits(a, left, m)
  return a * times + quotient, rest
end

-- How `now` stands to a state's own time: elapsed and lag, one of them 0. Nil when it is behind by a span or more: then
-- there is no state.
local function as_of(own, now, span)
  if own <= now then
    return now - own, 0
  elseif own - now < span then
    return 0, own - now
  end
end

local function window_start(now, window)
  return now - math.fmod(now, window)
end

-- A whole number of at most 2^53, or nil. Whatever else stands under our key is no state.
local function whole(text)
  local digits = type(text) == 'string' and #text <= 16 and string.match(text, '^%d+$')
  local number = digits and tonumber(digits)
  return number and number <= 2 ^ 53 and number or nil
end

-- A command that reads; false when the key holds a value of another kind. Any other error ends the script.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then
      error(reply.err, 0)
    end
    return false
  end
  return reply
end

-- The numbers of a state that is kept as text with blanks between them, or nil when it is not that many.
local function load(key, count)
  local numbers = {}
  for part in string.gmatch(read('GET', key) or '', '[^ ]+') do
    numbers[#numbers + 1] = whole(part)
    count = count - 1
  end
  return count == 0 and numbers or nil
end

-- Added to each expiry when the caller's clock counts and not the one by which keys expire: see decide.lua.
local expiry_margin = 0

-- Milliseconds after which a state decides like none.
local function expiry(reset_after)
  return math.max(1, divide_up(reset_after, 1000)) + expiry_margin
end

-- '%.0f' because Lua's own text of a number keeps 14 digits.
local function digits(number)
  return string.format('%.0f', number)
end

local function save(key, reset_after, ...)
  local numbers = {...}
  for i, number in ipairs(numbers) do
    numbers[i] = digits(number)
  end
  redis.call('SET', key, table.concat(numbers, ' '), 'PX', digits(expiry(reset_after)))
end

local ALLOWED, REFUSED, NEVER = 0, 1, 2

-- What decide.lua finds under the name of an algorithm:
--   settings                             how many numbers of ARGV describe a policy
--   view(key, policy, now)               the state as of now; reads, never writes. `ahead` when the clock has gone back
--                                        behind it by a span or more, so that the client is new
--   decide(policy, view, cost)           outcome, remaining, retry_after, more_after, reset_after
--   spend(key, policy, view, cost, reset_after)
local algorithms = {}
