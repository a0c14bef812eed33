-- Sliding window counter: this window's count, plus the previous window's weighted by the share of it still in reach.
--
-- KEYS   one string: "START COUNT PREVIOUS", the window that was last counted in and the count of the one before
-- ARGV   L, W (µs)
-- reply  see decide.lua; all times in µs
algorithms['sliding-window-counter'] = {
  settings = 2,

  view = function(key, policy, now)
    local limit, window = unpack(policy)
    local start = window_start(now, window)
    local view = {start = start, elapsed = now - start, lag = 0, count = 0, previous = 0}
    local state = load(key, 3)
    if not state then
      return view
    end
    local own, count, previous = unpack(state)
    if not previous or count > limit or previous > limit then
      return view
    end
    local elapsed, lag = as_of(own, now, window)
    if not elapsed then
      view.ahead = true
      return view
    elseif lag > 0 then
      return {start = own, elapsed = 0, lag = lag, count = count, previous = previous}
    end
    local passed = divide(elapsed, window)
    if passed == 0 then
      view.count, view.previous = count, previous
    elseif passed == 1 then
      view.previous = count
    end
    return view
  end,

  decide = function(policy, view, cost)
    local limit, window = unpack(policy)

    -- The first microsecond of a window at which `counted`, made in the window before, has faded to `room`.
    local function faded_at(counted, room)
      if counted <= room then
        return 0
      end
      return window - (multiply_divide(room, window, counted))
    end

    -- The wait until a cost that is refused now would pass.
    local function wait(count, price)
      local room = limit - price
      local at = window
      if room >= count then
        at = faded_at(view.previous, room - count)
      end
      if at >= window then
        -- Not in this window: in the next one, where this window's count is the previous one.
        at = window + faded_at(count, room)
      end
      return at - view.elapsed + view.lag
    end

    local function verdict(outcome, count, remaining, retry_after)
      local more_after, reset_after = 0, 0
      if remaining < limit then
        more_after = wait(count, remaining + 1)
      end
      if count > 0 or view.previous > 0 then
        reset_after = window - view.elapsed + view.lag + (count > 0 and window or 0)
      end
      return outcome, remaining, retry_after, more_after, reset_after
    end

    -- Rounded up: what is not whole is not room.
    local share, rest = multiply_divide(view.previous, window - view.elapsed, window)
    local taken = view.count + share + (rest > 0 and 1 or 0)
    -- Below 0 when the clock went back within a window, to where more of the previous one was in reach.
    local remaining = math.max(0, limit - taken)
    if cost > limit then
      return verdict(NEVER, view.count, remaining, 0)
    elseif taken + cost <= limit then
      return verdict(ALLOWED, view.count + cost, remaining - cost, 0)
    end
    return verdict(REFUSED, view.count, remaining, wait(view.count, cost))
  end,

  spend = function(key, _, view, cost, reset_after)
    save(key, reset_after, view.start, view.count + cost, view.previous)
  end,
}
