# Sourced by benchmarks that compare settings of a node under the same load over HTTP, in turn.
. scripts/packages
need wrk wrk curl curl >&2
[ -n "${TOLLGATE:-}" ] || cargo build --quiet --release --locked
binary=${TOLLGATE:-target/release/tollgate}
rounds=${ROUNDS:-3}
seconds=${SECONDS_EACH:-6}
folder=$(mktemp -d)
pid=
watcher=
end() {
  [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
  [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
  wait
  rm -rf "$folder"
}
trap end EXIT

cat >"$folder/load.lua" <<'LUA'
math.randomseed(1)
function request()
  return wrk.format("POST", "/v1/check", nil, '{"user":"user-' .. math.random(100000) .. '"}')
end
LUA

cpu() { # nanoseconds of all threads, or of those with a name
  local sum=0 task
  for task in "/proc/$pid/task/"*; do
    [ -n "${1:-}" ] && [ "$(cat "$task/comm")" != "$1" ] && continue
    sum=$((sum + $(cut -d' ' -f1 "$task/schedstat")))
  done
  echo "$sum"
}

start() { # the configuration, beside the listener: starts a node, and sets $pid and $address
  rm -rf "$folder/node" && mkdir "$folder/node"
  printf '%s\n' "$1" >"$folder/node/tollgate.yaml"
  "$binary" serve -c "$folder/node/tollgate.yaml" 2>"$folder/node/log" &
  pid=$!
  for _ in $(seq 200); do grep -q "http listens on" "$folder/node/log" && break; sleep 0.05; done
  address=$(listener http)
}

listener() { # a listener's name: its address
  sed -nE "s/.*$1 listens on ([0-9.:]+).*/\1/p" "$folder/node/log"
}

requests() { # sends requests, and prints how many were answered
  wrk -t 1 -c 16 -d "${seconds}s" -s "$folder/load.lua" "http://$address" | sed -nE 's/^ *([0-9]+) requests in.*/\1/p'
}

stop() {
  kill "$pid" && wait "$pid" || true
  pid=
}

median() { sort -n | sed -n "$((rounds / 2 + 1))p"; }

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }
