"""A shell with the addresses of this run, in a folder of its own: runs a page's commands in order."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import process
from process import ROOT, free_port
from servers import Api, Memcached, Postgres, Redis, need

WITHIN = 90.0
"""Seconds that a block may take."""

TOLLGATE = Path(os.environ.get("TOLLGATE", ROOT / "target/release/tollgate"))

# The pages use default ports; each run has its own.
PORTS = [8080, 7070, 6380, 8081, 8000, 8001, 3000, 7071, 8090, 8888, 6379, 11211, 5432]

# Programs that pages run in front of Tollgate, and where each comes from.
PROGRAMS = {
    "nginx": "the Debian package nginx",
    "caddy": "the Debian package caddy",
    "envoy": "scripts/servers",
    "traefik": "scripts/servers",
}

# Commands as a reader types them, with this run's addresses. A terminal shows no progress of curl, and begins a line
# after its output.
PRELUDE = r"""
set -m
tollgate() {
  case " $* " in *" --admin "* | *" --http "*) "$TOLLGATE" "$@"; return ;; esac
  case "$1 ${2:-}" in
    serve*) if [ "$BASHPID" = "$$" ]; then "$TOLLGATE" "$@"; else exec "$TOLLGATE" "$@" 2>>serve.log; fi ;;
    proxy*) exec "$TOLLGATE" "$@" --listen "127.0.0.1:$PORT_8000" 2>>serve.log ;;
    egress*) exec "$TOLLGATE" "$@" --listen "127.0.0.1:$PORT_8001" 2>>serve.log ;;
    check*) "$TOLLGATE" "$@" --http "http://127.0.0.1:$PORT_8080" ;;
    init*) "$TOLLGATE" "$@" && printf 'listen: { http: "127.0.0.1:%s", admin: "127.0.0.1:%s" }\n' "$PORT_8080" "$PORT_7070" >>"${2:-tollgate.yaml}" ;;
    "rules check" | "rules test" | verify* | config* | doctor* | import* | store* | demo* | help* | completions* | man* | -*) "$TOLLGATE" "$@" ;;
    *) "$TOLLGATE" "$@" --admin "http://127.0.0.1:$PORT_7070" ;;
  esac
}
curl() { if [ -p /dev/stdout ]; then command curl -sS "$@"; else command curl -sS "$@"; local code=$?; echo; return $code; fi; }
redis-cli() { command redis-cli -p "$PORT_6379" "$@"; }
psql() { command psql -h 127.0.0.1 -p "$PORT_5432" "$@"; }
admin_of() { # the port of the admin address in a configuration
  local port
  port=$(grep -oE '^listen:.* admin: "127\.0\.0\.1:[0-9]+' "$1" | grep -oE '[0-9]+$')
  echo "${port:-$PORT_7070}"
}
until_ready() { # the process, its port, and "admin" if that is where /readyz is
  local waited=0
  for _ in $(seq 600); do
    kill -0 "$1" 2>/dev/null || { cat serve.log; return 1; }
    if [ "${3:-}" = admin ]; then
      case "$(command curl -s "http://127.0.0.1:$2/readyz")" in
        *'"ready"'*) return ;;
        *'"waiting '*) waited=$((waited + 1)); [ "$waited" -lt 30 ] || return 0 ;; # as the page wants it
      esac
    else
      (: <"/dev/tcp/127.0.0.1/$2") 2>/dev/null && return
    fi
    sleep 0.1
  done
  echo "not ready"; cat serve.log; return 1
}
"""

# A server that a page starts in the background.
BACKGROUND = re.compile(
    rf"^(?P<line>(?P<program>tollgate serve|tollgate proxy|tollgate egress|python3 api.py|{'|'.join(PROGRAMS)})\b[^#\n]*&)[ \t]*(#.*)?$", re.MULTILINE
)


class Shell:
    def __init__(self, name: str, needs: list[str]):
        self.folder = process.folder(name)
        self.ports = {port: free_port() for port in PORTS}
        (self.folder / "examples").symlink_to(ROOT / "examples")
        self.programs: list[str] = []
        for server in needs:
            self._start(server)
        folders = [str(Path(program).parent) for program in self.programs]
        path = os.pathsep.join([*folders, os.environ["PATH"]])
        environment = dict(os.environ, TOLLGATE=str(TOLLGATE), PATH=path)
        environment |= {f"PORT_{port}": str(own) for port, own in self.ports.items()}
        self.bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            text=True, cwd=self.folder, env=environment, start_new_session=True,
        )
        self.bash.stdin.write(PRELUDE)
        self.blocks = 0

    def _start(self, server: str) -> None:
        match server:
            case "redis":
                self.ports[6379] = Redis().port
            case "memcached":
                self.ports[11211] = Memcached().ports[0]
            case "postgres":
                self.ports[5432] = Postgres().port
            case "api":
                self.ports[3000] = Api().server.server_port
            case program if program in PROGRAMS:
                self.programs.append(need(program, PROGRAMS[program]))
            case _:
                raise ValueError(f"unknown server '{server}'")

    def here(self, text: str) -> str:
        """A page's text with this run's ports."""
        return re.sub(r"(?:(?<=:)|(?<=port_value: )|(?<=-p ))(\d{4,5})\b", lambda port: str(self.ports.get(int(port[1]), port[1])), text)

    def there(self, text: str) -> str:
        """Output with the page's ports and paths."""
        for port, own in self.ports.items():
            text = re.sub(rf"(?<=:){own}\b", str(port), text)
        return text.replace(f"{self.folder}/", "")

    def write(self, name: str, text: str, served: bool) -> None:
        text = self.here(text)
        if served and not re.search(r"^listen:", text, re.MULTILINE):
            listen = {"http": 8080, "admin": 7070, "resp": 6380, "grpc": 8081}
            if re.search(r"^upstreams:", text, re.MULTILINE):
                listen["proxy"] = 8000
            addresses = ", ".join(f'{name}: "127.0.0.1:{self.ports[port]}"' for name, port in listen.items())
            text += f"\nlisten: {{ {addresses} }}\n"
        if served and re.search(r"^counters:", text, re.MULTILINE) and "store_deadline:" not in text:
            text += "store_deadline: 10s\n"  # a busy machine is not a store error
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, command: str) -> tuple[int, str]:
        """The exit code of the last command, and what was printed."""
        self.blocks += 1
        script, out, code = (self.folder / f".{self.blocks}.{kind}" for kind in ("sh", "out", "code"))
        command = self.here(command)
        command = BACKGROUND.sub(self._with_wait, command)
        script.write_text(command)
        self.bash.stdin.write(f"source {script} >{out} 2>&1; echo $? >{code}.new; mv {code}.new {code}\n")
        self.bash.stdin.flush()
        end = time.monotonic() + WITHIN
        while not code.exists():
            if time.monotonic() > end or self.bash.poll() is not None:
                raise AssertionError(f"not done within {WITHIN:.0f} s; printed so far:\n{out.read_text()}")
            time.sleep(0.01)
        return int(code.read_text()), self.there(out.read_text(errors="replace"))

    def _with_wait(self, found: re.Match) -> str:
        """A command that starts a server, and waits until it is ready."""
        program, line = found["program"], found["line"]
        if program in PROGRAMS:
            return f"{line} until_ready $! {self.ports[8888]}"
        if program == "tollgate proxy":
            return f"{line} until_ready $! {self.ports[8000]}"
        if program == "tollgate egress":
            return f"{line} until_ready $! {self.ports[8001]}"
        if program == "python3 api.py":
            return f"{line} until_ready $! {self.ports[3000]}"
        file = re.search(r"-c (\S+)", line)
        return f"{line} until_ready $! $(admin_of {file[1] if file else 'tollgate.yaml'}) admin"

    def close(self) -> None:
        """Ends the shell and the servers that the page has started."""
        try:
            self.bash.stdin.write("kill $(jobs -p) 2>/dev/null; exit\n")
            self.bash.stdin.close()
            self.bash.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self.bash.pid, signal.SIGKILL)
