-- Token bucket: a bucket holds at most C tokens, gains N per P evenly, and a request takes its cost or is refused.
--
-- KEYS   one string: "AT WHOLE PART", the level at the instant AT: WHOLE tokens and PART units of 1/P of a token.
--        Two numbers for the level, since C*P passes 2^53.
-- ARGV   C, N, P (µs, N per P in lowest terms), span (µs in which an empty bucket fills, rounded up)
-- reply  see decide.lua; all times in µs
algorithms['token-bucket'] = {
  settings = 4,

  view = function(key, policy, now)
    local capacity, tokens, period, span = unpack(policy)
    local full = {at = now, lag = 0, whole = capacity, part = 0}
    local state = load(key, 3)
    if not state then
      return full
    end
    local at, level, part = unpack(state)
    if not part or level > capacity or part >= period or (level == capacity and part > 0) then
      return full
    end
    local elapsed, lag = as_of(at, now, span)
    full.ahead = not elapsed
    if not elapsed or elapsed >= span then
      return full
    elseif lag > 0 then
      return {at = at, lag = lag, whole = level, part = part}
    end
    local gained, gained_part = multiply_divide(elapsed, tokens, period)
    local carry
    carry, part = divide(part + gained_part, period)
    level = level + gained + carry
    if level >= capacity then
      return full
    end
    return {at = now, lag = 0, whole = level, part = part}
  end,

  decide = function(policy, view, cost)
    local capacity, tokens, period = unpack(policy)

    -- The wait until the level has grown from WHOLE and PART to so many tokens.
    local function wait(target, level, part)
      local missing, missing_part = target - level, 0
      if part > 0 then
        missing, missing_part = missing - 1, period - part
      end
      local quotient, rest = multiply_divide(missing, period, tokens)
      return quotient + divide_up(rest + missing_part, tokens) + view.lag
    end

    local function verdict(outcome, level, retry_after)
      if level == capacity then
        return outcome, level, retry_after, 0, 0
      end
      return outcome, level, retry_after, wait(level + 1, level, view.part), wait(capacity, level, view.part)
    end

    if cost > capacity then
      return verdict(NEVER, view.whole, 0)
    elseif cost <= view.whole then
      return verdict(ALLOWED, view.whole - cost, 0)
    end
    return verdict(REFUSED, view.whole, wait(cost, view.whole, view.part))
  end,

  spend = function(key, _, view, cost, reset_after)
    save(key, reset_after, view.at, view.whole - cost, view.part)
  end,
}
