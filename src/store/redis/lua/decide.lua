-- One decision, all or nothing: every policy is asked, then the cost is spent in all of them or in none.
--
-- KEYS   a key for each policy, all of one client
-- ARGV   the time in µs since the epoch, empty for the time of this server; the cost; then for each policy the name of
--        its algorithm and that one's settings
-- reply  five integers for each policy: outcome (0 allowed, 1 refused, 2 never), remaining, retry_after (0 unless
--        refused), more_after, reset_after; times in µs. After a spend they tell what is left, else what is there.
--
-- A refusal and a cost of 0 write nothing, with one exception: see below. What is written gets its TTL in the same breath:
-- until the whole quota is back.
local now = tonumber(ARGV[1])
if now then
  -- This server's clock may run ahead of the caller's: a day more, so that no key goes before its time.
  expiry_margin = 86400000
else
  -- Once: on some servers it moves while a script runs.
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local cost = tonumber(ARGV[2])

local asked, allowed, argument = {}, true, 3
for i, key in ipairs(KEYS) do
  local algorithm = algorithms[ARGV[argument]]
  local policy = {}
  for setting = 1, algorithm.settings do
    policy[setting] = tonumber(ARGV[argument + setting])
  end
  argument = argument + 1 + algorithm.settings
  local view = algorithm.view(key, policy, now)
  asked[i] = {algorithm = algorithm, policy = policy, view = view, verdict = {algorithm.decide(policy, view, cost)}}
  allowed = allowed and asked[i].verdict[1] == ALLOWED
end

local reply = {}
for i, key in ipairs(KEYS) do
  local ask = asked[i]
  if allowed and cost > 0 then
    ask.algorithm.spend(key, ask.policy, ask.view, cost, ask.verdict[5])
  elseif not allowed and ask.verdict[1] == ALLOWED then
    ask.verdict = {ask.algorithm.decide(ask.policy, ask.view, 0)}
  end
  if not allowed and ask.view.ahead and #KEYS > 1 then
    -- Kept, it would come back into force while the wait that another policy told runs, and break its promise.
    redis.call('DEL', key)
  end
  for _, number in ipairs(ask.verdict) do
    reply[#reply + 1] = number
  end
end
return reply
