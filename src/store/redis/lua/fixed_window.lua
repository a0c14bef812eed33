-- Fixed window: at most L in each window, and windows start at whole multiples of W since the Unix epoch.
--
-- KEYS   one string: "START COUNT", the window that was last counted in
-- ARGV   L, W (µs)
-- reply  see decide.lua; all times in µs
algorithms['fixed-window'] = {
  settings = 2,

  view = function(key, policy, now)
    local limit, window = unpack(policy)
    local state = load(key, 2)
    local start, count
    local ahead = false
    if state then
      start, count = unpack(state)
    end
    if count and count <= limit then
      local elapsed, lag = as_of(start, now, window)
      ahead = not elapsed
      if elapsed and elapsed < window then
        return {start = start, count = count, ends_in = window - elapsed + lag}
      end
    end
    start = window_start(now, window)
    return {start = start, count = 0, ends_in = window - (now - start), ahead = ahead}
  end,

  decide = function(policy, view, cost)
    local limit = policy[1]

    local function verdict(outcome, count, retry_after)
      local after = count == 0 and 0 or view.ends_in
      return outcome, limit - count, retry_after, after, after
    end

    if cost > limit then
      return verdict(NEVER, view.count, 0)
    elseif cost <= limit - view.count then
      return verdict(ALLOWED, view.count + cost, 0)
    end
    return verdict(REFUSED, view.count, view.ends_in)
  end,

  spend = function(key, _, view, cost, reset_after)
    save(key, reset_after, view.start, view.count + cost)
  end,
}
