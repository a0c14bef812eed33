-- Sliding window log: the time of every request let in is kept, and those of the last W count.
--
-- KEYS   one list: the times in µs, oldest first. A list takes a tenth of what a sorted set does, and holds equal times.
-- ARGV   L, W (µs)
-- reply  see decide.lua; all times in µs
--
-- A request costs some twenty lookups by index, however long the list is, and what it pushes and trims.
local function no_log(now)
  return {at = now, lag = 0, length = 0, expired = 0}
end

-- As many at a time: the arguments of a call are on Lua's stack.
local PUSHED_AT_ONCE = 1000

algorithms['sliding-window-log'] = {
  settings = 2,

  view = function(key, policy, now)
    local limit, window = unpack(policy)
    local length = read('LLEN', key)
    if length == 0 then
      return no_log(now)
    end
    local foreign = no_log(now)
    foreign.foreign = true
    if not length then
      return foreign
    end

    local function entry(index)
      return whole(read('LINDEX', key, index))
    end

    local youngest = entry(-1)
    if not youngest then
      return foreign
    end
    local elapsed, lag = as_of(youngest, now, window)
    if not elapsed or elapsed >= window then
      return {at = now, lag = 0, length = length, expired = length, ahead = not elapsed}
    end
    local at = now + lag

    -- The first index whose entry still counts. Nearly always 0 or a little more, so the steps grow from there.
    local low, high, step = 0, length - 1, 1
    while low < high do
      local middle = math.min(low + step - 1, math.floor((low + high) / 2))
      local time = entry(middle)
      if not time or time > at then
        return foreign
      end
      if at - time >= window then
        low, step = middle + 1, step * 2
      else
        high = middle
      end
    end
    if length - low > limit then
      return foreign
    end
    return {
      at = at,
      lag = lag,
      length = length,
      expired = low,
      -- The wait until the nth of the entries that count is out; between 1 and the window, whatever stands there.
      out_in = function(nth)
        local age = at - (entry(low + nth) or at)
        return window - math.max(0, math.min(age, window - 1)) + lag
      end,
    }
  end,

  decide = function(policy, view, cost)
    local limit, window = unpack(policy)
    local counted = view.length - view.expired
    local remaining = limit - counted
    local more_after, reset_after = 0, 0
    if counted > 0 then
      more_after, reset_after = view.out_in(0), view.out_in(counted - 1)
    end
    if cost > limit then
      return NEVER, remaining, 0, more_after, reset_after
    elseif cost > remaining then
      return REFUSED, remaining, view.out_in(counted + cost - limit - 1), more_after, reset_after
    elseif cost > 0 then
      reset_after = window + view.lag
      if counted == 0 then
        more_after = reset_after
      end
    end
    return ALLOWED, remaining - cost, 0, more_after, reset_after
  end,

  spend = function(key, _, view, cost, reset_after)
    if view.foreign or (view.expired > 0 and view.expired == view.length) then
      redis.call('DEL', key)
    elseif view.expired > 0 then
      redis.call('LTRIM', key, view.expired, -1)
    end
    local times = {}
    for i = 1, math.min(cost, PUSHED_AT_ONCE) do
      times[i] = digits(view.at)
    end
    for left = cost, 1, -PUSHED_AT_ONCE do
      redis.call('RPUSH', key, unpack(times, 1, math.min(left, PUSHED_AT_ONCE)))
    end
    redis.call('PEXPIRE', key, digits(expiry(reset_after)))
  end,
}
