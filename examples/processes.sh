# For the run scripts of examples: a temporary $folder, and processes that end with the script.
PATH=$(dirname "${BASH_SOURCE[0]}")/../target/servers/bin:$PATH # where scripts/servers puts Envoy and Traefik
folder=$(mktemp -d)
started=()
finish() {
  trap - EXIT INT TERM
  for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done
  for process in "${started[@]}"; do wait "$process" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

installed() {
  for command in "$@"; do
    command -v "$command" >/dev/null || { echo "$command is not installed" >&2; exit 1; }
  done
}

# Starts a process with a log of its own, and waits until it answers.
start() { # name, address, port, command …
  local name=$1 address=$2 port=$3
  shift 3
  (: <"/dev/tcp/$address/$port") 2>/dev/null && { echo "port $port is in use" >&2; exit 1; }
  "$@" >"$folder/$name.log" 2>&1 &
  started+=($!)
  for _ in $(seq 300); do
    (: <"/dev/tcp/$address/$port") 2>/dev/null && return
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  echo "$name does not start:" >&2
  tail -n 20 "$folder/$name.log" >&2
  exit 1
}
