"""B. Rules."""

import json

import statistics
import subprocess
import time

import process
from node import Node, tollgate
from process import ROOT, wait_until
from servers import Postgres
from table import check, equal, true

@check("B1", "the short form {id, uid, url, time, requests}, and a user's rule that stands in for the general one")
def short_form() -> None:
    node = Node("""rules_db: none
rules:
  - { id: general, url: /search, time: minute, requests: 4 }
  - { id: of-77, uid: "77", url: /search, time: minute, requests: 9 }
  - { id: by-host, match: "GET /items/{id}/**", host: "*.shop.example", key: user, limit: 2/h }
""")
    equal(node.passed(6, path="/search", user="5"), 4, "everybody else")
    equal(node.passed(12, path="/search", user="77"), 9, "user 77")
    request = {"method": "GET", "host": "eu.shop.example", "path": "/items/4/reviews", "user": "5"}
    equal(node.passed(3, **request), 2, "method, pattern and host")
    for other in ({"method": "POST"}, {"host": "shop.example"}, {"path": "/items"}):
        equal(node.check(**(request | other)).body["reason"], "no_rule", f"{other}")

@check("B2", "2/s, 5/m, 10/h, 100/d, 5/min, 5 requests/minute, 30/10s, 1000/month; several in one rule, all must hold")
def rates() -> None:
    written = {"2/s": 2, "5/m": 5, "10/h": 10, "100/d": 100, "5/min": 5, "5 requests/minute": 5, "30/10s": 30, "1000/month": 1000}
    rules = "".join(
        f"  - {{ id: r{n}, match: /r{n}, limit: '{rate}', algorithm: fixed-window, window: first-hit }}\n" for n, rate in enumerate(written)
    )
    node = Node(f"rules_db: none\nrules:\n{rules}  - {{ id: both, match: /both, limits: [3/m, 4/h], key: user }}\n")
    for n, (rate, number) in enumerate(written.items()):
        equal(node.check(path=f"/r{n}", cost=number).body["remaining"], 0, rate)
        equal(node.check(path=f"/r{n}", cost=number + 1).body["retry_after_ms"], None, f"more than {rate} can never pass")
    equal(node.passed(5, path="/both", user="1"), 3, "3/m holds")
    answer = node.check(path="/both", user="1").body
    equal([(limit["limit"], limit["allowed"]) for limit in answer["rules"]], [("3/m", False), ("4/h", True)])

@check("B3", "a million rules that all differ: memory, disk, import, first load and matching within their bounds (bench/rules-db)")
def million_rules() -> None:
    ran = subprocess.run([ROOT / "bench/rules-db"], capture_output=True, text=True, timeout=1800)
    print("".join(f"{'':14}{line}\n" for line in ran.stdout.splitlines()), end="")
    equal(ran.returncode, 0, "bench/rules-db: " + ran.stderr[-300:])

def limit_in_force(node: Node, path: str) -> str | None:
    """The limit by which the node decides; the admin API would tell what the database says."""
    return node.check(path=path, user="somebody", peek=True).body["limit"]

@check("B4", "a change is in force on every node within 1 s (median of 7), no counter is lost, no request fails")
def live_changes() -> None:
    database = Postgres()
    nodes = [Node(f"rules_db: postgres://postgres@{database.host}/postgres\n") for _ in range(3)]
    first = nodes[0]
    equal(first.admin("POST", "/v1/rules", {"id": "live", "match": "/live", "key": ["user"], "limits": ["20/h"], "algorithm": "fixed-window"}).status, 201)
    for node in nodes:
        wait_until("the rule is in force", lambda: limit_in_force(node, "/live") == "20/h")
    used = [node.passed(3, path="/live", user="1") for node in nodes]
    equal(used, [3, 3, 3])
    took = []
    for number in range(21, 28):
        start = time.monotonic()
        changed = {"match": "/live", "key": ["user"], "limits": [f"{number}/h"], "algorithm": "fixed-window"}
        equal(first.admin("PUT", "/v1/rules/live", changed).status, 200)
        for node in nodes:
            while limit_in_force(node, "/live") != f"{number}/h":
                equal(node.check(path="/live", user=f"other-{time.monotonic()}").body["allowed"], True, "a request during the change")
                true(time.monotonic() - start < process.SOON, "the change does not arrive")
        took.append(time.monotonic() - start)
    true(statistics.median(took) <= 1, f"seconds until a change was in force everywhere: {took}")
    for node in nodes:
        equal(node.check(path="/live", user="1", peek=True).body["remaining"], 27 - 3, "what was used stays used")

@check("B5", "rules survive a restart in SQLite, the default")
def embedded_by_default() -> None:
    node = Node("")
    equal(node.admin("POST", "/v1/rules", {"id": "kept", "match": "/kept", "limits": ["3/h"]}).status, 201)
    node.kill()
    node.start()
    equal(node.passed(5, path="/kept"), 3)

@check("B5", "PostgreSQL: a standby is read while the primary is gone, health says that edits are not possible")
def replicas() -> None:
    primary = Postgres()
    node = Node(f"rules_db: postgres://postgres@{primary.host}/postgres\n")
    standby = Postgres(primary)
    node.stop()
    node.config = f"rules_db: postgres://postgres@{primary.host}/postgres?replica={standby.host}\n"
    node.start()
    equal(node.admin("POST", "/v1/rules", {"id": "a", "match": "/a", "limits": ["3/h"]}).status, 201)
    wait_until("the standby has it", lambda: standby.sql("select count(*) from tollgate.rule") == "1")
    primary.process.kill()
    wait_until("edits are refused", lambda: node.admin("PUT", "/v1/rules/a", {"match": "/a", "limits": ["9/h"]}).status == 503)
    wait_until("health says so", lambda: "edit" in json.dumps(node.health()))
    equal(node.passed(5, path="/a"), 3, "the rules in force stay")
    second = Node(node.config)
    equal(second.passed(5, path="/a"), 3, "a node that starts now reads the standby")

@check("B5", "a node that restarts while the database is gone starts from its own last good copy, and says so")
def cold_start_with_a_copy() -> None:
    database = Postgres()
    node = Node(f"rules_db: postgres://postgres@{database.host}/postgres\n")
    equal(node.admin("POST", "/v1/rules", {"id": "a", "match": "/a", "limits": ["4/h"], "key": ["user"]}).status, 201)
    equal(node.admin("POST", "/v1/bans", {"key": "user:evil", "for": "1h"}).status, 201)
    wait_until("the copy is written", lambda: any("copy" in path.name for path in node.directory.rglob("*")), 10)
    time.sleep(1.5)  # the stated time after which a change is in the copy
    database.stop()
    node.kill()
    node.start()
    equal(node.passed(6, path="/a", user="1"), 4, "the rule of the copy")
    equal(node.check(path="/b", user="evil").status, 403, "the ban of the copy")
    true("copy" in json.dumps(node.health()), f"health: {node.health()}")
    database.start()
    wait_until("it follows the database again", lambda: node.admin("PUT", "/v1/rules/a", {"match": "/a", "limits": ["6/h"], "key": ["user"]}).status == 200)
    equal(node.passed(4, path="/a", user="1"), 2, "6 instead of 4, and 4 used")

@check("B5", "without any copy: closed keeps decisions and proxy shut with /readyz 503; open lets everything pass and says so")
def cold_start_without_a_copy() -> None:
    gone = process.free_port()
    database = f"rules_db: postgres://postgres@127.0.0.1:{gone}/postgres\n"
    closed = Node(database, ready=False)
    wait_until("admin answers", lambda: closed.ready() == 503)
    true(not process.accepts(closed.http), "the decision listener must stay closed")
    opened = Node(database + "on_rules_error: open\n", ready=False)
    wait_until("decisions are answered", lambda: process.accepts(opened.http))
    equal(opened.check(path="/x").status, 200)
    true("rules" in json.dumps(opened.health()) and opened.health()["status"] != "ok", f"health: {opened.health()}")

@check("B6", "a limit changed in the file counts on; a bad rule is refused with place and reason, and the rules in force stay")
def tunable() -> None:
    rule = "rules: [{{ id: a, match: /a, key: user, limit: {} }}]\n"
    node = Node("rules_db: none\n" + rule.format("5/h"))
    equal(node.passed(7, path="/a", user="1"), 5)
    node.write("rules_db: none\n" + rule.format("50/h"))
    wait_until("the new limit is in force", lambda: limit_in_force(node, "/a") == "50/h")
    equal(node.check(path="/a", user="1").body["remaining"] in (44, 45), True, "5 of 50 used")
    node.write("rules_db: none\nrules:\n  - { id: a, match: /a, key: user, limt: 9/h }\n")
    wait_until("the bad file is reported", lambda: "limt" in node.process.text())
    equal(limit_in_force(node, "/a"), "50/h", "the last good rules")
    checked = tollgate("rules", "check", node.file)
    equal(checked.returncode, 3)
    true("tollgate.yaml:4:" in checked.stderr + checked.stdout and "limt" in checked.stderr + checked.stdout, checked.stderr)
    refused = node.admin("PUT", "/v1/enforce", {"enforce": "sometimes"})
    equal(refused.status, 400)
