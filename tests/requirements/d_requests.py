"""D. What happens to a request."""

import json
import os
import re
import signal
import subprocess
import time

from node import BINARY, Node, at_once, call, statuses, tollgate
from process import ROOT, Process, accepts, find, folder, free_port, wait_until
from servers import Api, Memcached, Postgres, Redis
from table import Missing, check, equal, true


@check("D1", "within the limit a request reaches the API; above it 429 with message, Retry-After and RateLimit headers")
def forwarded_or_refused() -> None:
    api = Api()
    node = Node(f"rules_db: none\nupstreams: [{api.url}]\nrules: [{{ id: login, match: POST /login, key: ip, limit: 3/h, algorithm: sliding-log }}]\n")
    answers = [call(node.proxy, "POST", "/login", "x=1") for _ in range(5)]
    equal([answer.status for answer in answers], [200, 200, 200, 429, 429])
    equal(len(api.requests), 3, "requests that reached the API")
    refused = answers[-1]
    equal(refused.headers["content-type"], "application/problem+json")
    true("login" in refused.body["detail"] and refused.body["violated-policies"] == ["login"], refused.text)
    true(3590 <= int(refused.headers["retry-after"]) <= 3600, refused.headers["retry-after"])
    equal(refused.headers["ratelimit-policy"], '"login";q=3;w=3600')
    equal(refused.headers["ratelimit"], f'"login";r=0;t={refused.headers["retry-after"]}')
    equal(answers[0].headers["ratelimit"].split(";")[1], "r=2", "headers of an admitted request")


@check("D2", "on_exceed: queue keeps the request, answers 202 with a status URL, and replays it at the rate, also after kill -9")
def queued() -> None:
    api = Api()
    node = Node(f"rules_db: none\nupstreams: [{api.url}]\nrules: [{{ id: jobs, match: POST /jobs, key: ip, limit: 2/4s, on_exceed: queue }}]\n")
    answers = [call(node.proxy, "POST", "/jobs", f"job {n}", {"content-type": "text/plain"}) for n in range(4)]
    equal([answer.status for answer in answers], [200, 200, 202, 202])
    status = answers[3].headers["location"]
    equal(call(node.proxy, "GET", status).body["status"], "queued")
    node.kill()
    node.start()
    wait_until("the queued jobs reach the API", lambda: len(api.requests) == 4)
    equal([body for *_, body in api.requests], [b"job 0", b"job 1", b"job 2", b"job 3"], "in order")
    true(api.requests[3][0] - api.requests[2][0] > 1, "replayed at the rate")
    wait_until("its status says done", lambda: call(node.proxy, "GET", status).body["status"] == "done")
    node.write(node.config + "queue: { answer: 429 }\n")
    node.stop()
    node.start()
    equal([call(node.proxy, "POST", "/jobs", "x").status for _ in range(4)].count(429) >= 1, True, "429 where configured")


@check("D3", "a ban refuses before any rule; allow list first; expires; survives a restart and kill -9; a range")
def bans() -> None:
    node = Node("allow: ['ip:192.0.2.200']\nrules: [{ id: a, match: /a, key: ip, limit: 2/h }]\n")
    for key, span in (("ip:192.0.2.0/24", "1h"), ("user:quick", "3s")):
        equal(node.admin("POST", "/v1/bans", {"key": key, "for": span, "reason": "test"}).status, 201)
    refused = node.check(path="/nothing", ip="192.0.2.17")
    equal((refused.status, refused.body["reason"]), (403, "ban"))
    equal(node.check(path="/a", ip="192.0.2.200").body["reason"], "allow_list")
    equal(node.check(user="quick").status, 403)
    node.kill()
    node.start()
    equal(node.check(ip="192.0.2.99").status, 403, "after kill -9")
    wait_until("the short ban is over", lambda: node.check(user="quick").status == 200)
    removed = node.cli("ban", "rm", "ip:192.0.2.0/24")
    equal(removed.returncode, 0, removed.stderr)
    equal(node.check(ip="192.0.2.99").status, 200)


@check("D3", "repeated violations ban by themselves, and longer each time: one burst of 40 in parallel is one strike")
def automatic_bans() -> None:
    node = Node("rules_db: none\nrules: [{ id: a, match: /a, key: user, limit: 2/h, ban: { key: [ip], after: 4, within: 5m, for: 2s, max: 1h } }]\n")
    burst = [{"path": "/a", "user": "1", "ip": "192.0.2.1"}] * 40
    found = statuses(at_once([node], burst))
    equal(found[200], 2)
    true(found[429] >= 4 and found[200] + found[429] + found[403] == 40, f"{found}")
    ban = next(ban for ban in node.admin("GET", "/v1/bans").body["bans"] if ban["key"] == "ip:192.0.2.1")
    equal(ban["strikes"], 1, "strikes of one burst")
    wait_until("the ban is over", lambda: node.check(path="/b", ip="192.0.2.1").status == 200)
    found = statuses(at_once([node], burst))
    true(found[429] >= 4, f"{found}")
    ban = next(ban for ban in node.admin("GET", "/v1/bans").body["bans"] if ban["key"] == "ip:192.0.2.1")
    equal(ban["strikes"], 2, "the second burst")


BANNING = "rules: [{ id: a, match: /a, key: user, limit: 3/h, ban: { key: [user], after: 7, within: 5m, for: 1h } }]\n"


def threshold_in_a_fleet(counters: str, rules_db: str) -> None:
    nodes = [Node(f"rules_db: {rules_db}\ncounters: {counters}\n{BANNING}") for _ in range(3)]
    answers = [nodes[n % 3].check(path="/a", user="evil").status for n in range(3 + 6)]
    equal(answers, [200] * 3 + [429] * 6, "before the threshold")
    time.sleep(1.5)  # six denials are known everywhere by now, and are no reason for a ban
    equal(nodes[0].check(path="/b", user="evil").status, 200, "six denials do not ban yet")
    equal(nodes[1].check(path="/a", user="evil").status, 429, "the seventh denial")
    for node in nodes:
        wait_until("the ban is known on every node", lambda: node.check(path="/b", user="evil").status == 403, 10)
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    for node in nodes:
        wait_until("the ban holds after all nodes were killed", lambda: node.check(path="/b", user="evil").status == 403, 10)
    for node in nodes:
        ban = next(ban for ban in node.admin("GET", "/v1/bans").body["bans"] if ban["key"] == "user:evil")
        equal(ban["strikes"], 1)


@check("D3", "three nodes on Redis: after: 7 takes 7 denials in the whole fleet, and kill -9 of all nodes loses no ban")
def thresholds_on_redis() -> None:
    threshold_in_a_fleet(Redis().url, "none")


@check("D3", "three nodes on Memcached with PostgreSQL: the same")
def thresholds_on_memcached() -> None:
    threshold_in_a_fleet(Memcached().url, f"postgres://postgres@{Postgres().host}/postgres")


@check("D3", "a ban by hand reaches every node within 1 s (median of 5)")
def bans_reach_the_fleet() -> None:
    database = Postgres()
    nodes = [Node(f"rules_db: postgres://postgres@{database.host}/postgres\n") for _ in range(3)]
    took = []
    for n in range(5):
        start = time.monotonic()
        equal(nodes[n % 3].admin("POST", "/v1/bans", {"key": f"user:evil-{n}", "for": "1h"}).status, 201)
        for node in nodes:
            wait_until("the ban is known", lambda: node.check(user=f"evil-{n}").status == 403)
        took.append(time.monotonic() - start)
    true(sorted(took)[2] <= 1, f"seconds: {took}")


@check("D4", "the decision API: requestAllowed(userId, ipAddress), a batch, the command line")
def decision_api() -> None:
    node = Node("rules_db: none\nrules: [{ id: a, key: [user, ip], limit: 2/h }]\n")
    path = "/v1/request-allowed?userId=42&ipAddress=192.0.2.7"
    equal([call(node.http, "GET", path).status for _ in range(3)], [200, 200, 429])
    batch = node.ask("/v1/check/batch", [{"user": "1", "ip": "192.0.2.1"}] * 3).body
    equal([item["status"] for item in batch], [200, 200, 429])
    asked = [tollgate("check", "--user", "9", "--ip", "192.0.2.9", "--http", f"http://127.0.0.1:{node.http}") for _ in range(3)]
    equal([each.returncode for each in asked], [0, 0, 1], asked[-1].stderr)


@check("D4", "embedded as a library: the README's and the docs' programs compile and run (cargo test --doc)")
def library() -> None:
    ran = subprocess.run(["cargo", "test", "--quiet", "--locked", "-p", "tollgate", "--doc"], cwd=ROOT, capture_output=True, text=True)
    equal(ran.returncode, 0, ran.stdout[-400:] + ran.stderr[-400:])


def cargo_test(*arguments: str) -> None:
    ran = subprocess.run(["cargo", "test", "--quiet", "--locked", *arguments], cwd=ROOT, capture_output=True, text=True)
    equal(ran.returncode, 0, ran.stdout[-400:] + ran.stderr[-400:])


@check("D4", "as middleware: the layer inside real axum and tonic servers (cargo test)")
def middleware() -> None:
    cargo_test("-p", "tollgate-tower")


@check("D4", "on the client side: the layer and the middleware for a program's own calls (cargo test)")
def client_side() -> None:
    cargo_test("-p", "tollgate-client")


@check("D4", "on the client side in any language: tollgate egress keeps to the limit, waits for its turn, and then refuses")
def egress() -> None:
    api = Api()
    port = free_port()
    command = [BINARY, "egress", "--to", api.url, "--limit", "4/h", "--max-wait", "1s", "--listen", f"127.0.0.1:{port}"]
    gateway = Process(command, folder("egress") / "log")
    try:
        wait_until("the gateway listens", lambda: accepts(port) or not gateway.running())
        answers = [call(port, "GET", f"/items/{n}") for n in range(6)]
        equal([answer.status for answer in answers], [200] * 4 + [429] * 2, answers[-1].text)
        equal([path for _, _, path, *_ in api.requests], [f"/items/{n}" for n in range(4)], "calls that reached the API")
        true(0 < int(answers[-1].headers["retry-after"]) <= 3700, answers[-1].headers["retry-after"])
    finally:
        gateway.end()


@check("D4", "on the client side: two gateways with one budget in Redis stay at the limit together")
def egress_shared() -> None:
    api = Api()
    redis = Redis()
    ports = [free_port(), free_port()]
    options = ["--limit", "6/d", "--max-wait", "1s", "--store", redis.url]
    gateways = [Process([BINARY, "egress", "--to", api.url, *options, "--listen", f"127.0.0.1:{port}"], folder("egress") / "log") for port in ports]
    try:
        for port, gateway in zip(ports, gateways):
            wait_until("the gateway listens", lambda: accepts(port) or not gateway.running())
        found = [call(ports[n % 2], "GET", "/").status for n in range(9)]
        equal(found, [200] * 6 + [429] * 3)
        equal(len(api.requests), 6, "calls that reached the API")
    finally:
        for gateway in gateways:
            gateway.end()


@check("D5", "counters out of reach: open admits, closed answers 503, local counts the node's share; per rule")
def failing_open_and_closed() -> None:
    redis = Redis()
    node = Node(f"""rules_db: none
counters: {redis.url}
nodes: 2
rules:
  - {{ id: open, match: /open, key: user, limit: 4/h }}
  - {{ id: closed, match: /closed, key: user, limit: 4/h, on_store_error: closed }}
  - {{ id: local, match: /local, key: user, limit: 4/h, on_store_error: local }}
""")
    equal(node.passed(6, path="/open", user="1"), 4)
    redis.process.kill()
    wait_until("health says that protection is off", lambda: node.health()["status"] == "impaired" or node.check(path="/open", user="9") and False)
    found = [statuses([node.check(path=f"/{mode}", user="2") for _ in range(6)]) for mode in ("open", "closed", "local")]
    equal(found, [{200: 6}, {503: 6}, {200: 2, 429: 4}])
    redis.start()
    wait_until("it counts again", lambda: node.check(path="/closed", user="3").status == 200)


def recipe(*command: str) -> None:
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    equal(ran.returncode, 0, f"{command[0]}: {ran.stdout[-300:]}{ran.stderr[-300:]}")


@check("D5", "recipes with every node killed, open and closed: HAProxy, nginx")
def recipes_of_load_balancers() -> None:
    example = ROOT / "examples/several-nodes/run"
    for balancer in ("haproxy", "nginx"):
        for failing in ("open", "closed"):
            recipe(example, "--check", balancer, "user", failing)


@check("D5", "recipes with every node killed, open and closed: Envoy, Caddy, Traefik")
def recipes_of_gateways() -> None:
    for balancer in ("envoy", "caddy", "traefik"):
        if not find(balancer):
            raise Missing(f"no {balancer}")
        for failing, expected in (("open", 200), ("closed", 503)):
            ports = {name: str(free_port()) for name in ("FRONT", "NODES", "ADMIN", "API", "REDIS")}
            environment = {**os.environ, **ports, "TOLLGATE": str(BINARY)}
            log = folder(balancer) / "log"
            example = Process([ROOT / "examples/load-balancers/run", balancer, failing], log, env=environment)
            try:
                wait_until("the example runs", lambda: "Ctrl-C ends it" in example.text() or not example.running())
                ask = lambda: call(int(ports["FRONT"]), "GET", "/limited/", source="127.0.0.2").status
                wait_until(f"{balancer} passes requests on", lambda: ask() == 200)
                wait_until(f"the limit holds behind {balancer}", lambda: ask() == 429)
                for node in re.findall(r"process (\d+),", example.text()):
                    os.kill(int(node), signal.SIGKILL)
                wait_until(f"{balancer} fails {failing}", lambda: ask() == expected)
                equal([ask() for _ in range(20)], [expected] * 20, f"{balancer}, failing {failing}")
            finally:
                example.end()


@check("D5", "callers with every node killed, open and closed: Python, Node, Go, Rust")
def recipes_of_callers() -> None:
    examples = ROOT / "examples/callers"
    rust = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "tollgate-server", "--example", "caller", "--"]
    callers = {
        "python3": ["python3", examples / "python/caller.py"],
        "node": ["node", examples / "node/caller.mjs"],
        "go": ["go", "run", examples / "go/caller.go"],
        "cargo": rust,
    }
    node = Node("rules_db: none\nrules: [{ id: each, key: user, limit: 1/h }]\n")

    def verdicts(tool: str, failing: str) -> list:
        if not find(tool):
            raise Missing(f"no {tool}")
        asked = f'{{"user":"{tool}-{failing}"}}\n' * 2
        command = [*map(str, callers[tool]), failing, "5000", f"http://127.0.0.1:{node.http}"]
        ran = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=ROOT, timeout=600)
        equal(ran.returncode, 0, ran.stderr[-300:])
        told = [json.loads(line) for line in ran.stdout.splitlines()]
        return [(verdict["status"], verdict["allowed"], verdict["decided"]) for verdict in told]

    ways = [(tool, failing) for tool in callers for failing in ("open", "closed")]
    for tool, failing in ways:
        equal(verdicts(tool, failing), [(200, True, True), (429, False, True)], f"{tool}, {failing}")
    node.process.kill()
    for tool, failing in ways:
        failed = (200, True, False) if failing == "open" else (503, False, False)
        equal(verdicts(tool, failing), [failed] * 2, f"{tool}, {failing}, no node")
