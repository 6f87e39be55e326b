"""Floods of made-up keys against a memory store that is too small for them."""

import time

from measure import metric, peak, resident
from node import Node
from report import attack

LIMIT = 5
CELLS = 64
"""Shared counters of a limit for keys that found no room (docs/operations.md)."""
MEMORY = 16
"""MiB of counters."""
LIVE_DATA = 32
"""MiB that the counts of decisions take, at most (docs/operations.md)."""
PROCESS = 30
"""MB of everything else."""
BOUND = f"{MEMORY} MiB + {LIVE_DATA} MiB of live data + {PROCESS} MB of memory"
FLOOD = 1_200_000


def flooded(algorithm: str = "gcra") -> tuple[Node, int]:
    """A node in which 100 clients are at their limit and then made-up keys come; how many of those passed."""
    rules = f"- {{ id: five, limit: {LIMIT}/h, key: user, algorithm: {algorithm} }}"
    node = Node(f"memory: {MEMORY}MiB\nrules_db: none\nrules:\n{rules}\n")
    hit(node, [f"offender-{number}" for number in range(100)] * (LIMIT + 3))
    return node, hit(node, (f"made-up-{number}" for number in range(FLOOD)))


def hit(node: Node, users) -> int:
    """How many requests pass, one for each name."""
    passed, batch = 0, []

    def ask() -> int:
        answers = node.ask("/v1/check/batch", batch).body
        batch.clear()
        return sum(answer["allowed"] for answer in answers)

    for user in users:
        batch.append({"user": user})
        if len(batch) == 1000:
            passed += ask()
    return passed + (ask() if batch else 0)


def within(megabytes: float) -> bool:
    return megabytes < (MEMORY + LIVE_DATA) * 1.048576 + PROCESS


def entries(node: Node) -> float:
    """Keys that have an entry, or had one that was evicted."""
    return metric(node, "tollgate_store_keys") + metric(node, "tollgate_store_evicted_total")


for name in ("gcra", "sliding-log", "sliding-counter", "fixed-window"):

    @attack(
        "floods",
        f"{FLOOD:,} made-up keys in {MEMORY} MiB, then 100 clients at their limit go on ({name})",
        f"0 of 1,000 pass; of keys without room {CELLS * LIMIT} in all ({CELLS} shared counters); {BOUND}",
    )
    def made_up_keys(name=name):
        node, _ = flooded(name)
        known = hit(node, [f"offender-{number}" for number in range(100)] * 10)
        unstored = metric(node, "tollgate_store_unstored_total")
        before = entries(node)
        fresh = hit(node, (f"fresh-{number}" for number in range(2_000) for _ in range(20)))
        # A key that displaced another one, or found a gap, has a counter of its own.
        stored = int(entries(node) - before)
        memory = peak(node)
        node.stop()
        bound = CELLS * LIMIT + stored * LIMIT
        holds = known == 0 and fresh <= bound and within(memory) and unstored > 0
        return holds, f"{known} pass; {fresh} of 40,000 by fresh keys, {stored} of them found room; {memory:.0f} MB"


def ask_on(node: Node, path: str, users: list[str]) -> list[bool]:
    """Which requests pass, one for each name."""
    allowed = []
    for first in range(0, len(users), 1000):
        batch = [{"path": path, "user": user} for user in users[first : first + 1000]]
        allowed += [answer["allowed"] for answer in node.ask("/v1/check/batch", batch).body]
    return allowed


for name in ("sliding-log", "sliding-compact", "tiered-window", "concurrency", "fixed-window, window: first-hit"):

    @attack(
        "floods",
        f"50 clients of 20/h go on while made-up keys of 100/d and 1/m fill 1 MiB ({name})",
        "at most 20 of each pass",
    )
    def growing_states(name=name):
        rules = f"- {{ id: known, match: /known, limit: 20/h, key: user, algorithm: {name} }}\n"
        rules += "- { id: daily, match: /daily, limit: 100/d, key: user, algorithm: sliding-log }\n"
        rules += "- { id: minute, match: /minute, limit: 1/m, key: user, algorithm: fixed-window, window: first-hit }\n"
        node = Node(f"memory: 1MiB\nrules_db: none\nrules:\n{rules}")
        clients = [f"client-{number}" for number in range(50)]
        passed = dict.fromkeys(clients, 0)

        def go_on(rounds: int) -> None:
            for _ in range(rounds):
                for client, allowed in zip(clients, ask_on(node, "/known", clients)):
                    passed[client] += allowed

        go_on(10)
        for number in range(20):
            made_up = [f"made-up-{number}-{each}" for each in range(2_000)]
            ask_on(node, "/daily" if number % 2 else "/minute", made_up)
            go_on(2)
        full = metric(node, "tollgate_store_unstored_total") + metric(node, "tollgate_store_evicted_total") > 0
        node.stop()
        most = max(passed.values())
        return most <= 20 and full, f"{most} at most, {min(passed.values())} at least"


@attack("floods", "20 clients of 100/d have themselves evicted by made-up keys of 1/10s, seven times, after 19 hits each time", "at most 100 and less than a quarter more of each pass")
def evicted_again_and_again():
    rules = "- { id: daily, match: /daily, limit: 100/d, key: user }\n- { id: often, match: /often, limit: 1/10s, key: user }\n"
    node = Node(f"memory: 1MiB\nrules_db: none\nrules:\n{rules}")
    clients = [f"client-{number}" for number in range(20)]
    passed = dict.fromkeys(clients, 0)
    for cycle in range(7):
        for _ in range(19):
            for client, allowed in zip(clients, ask_on(node, "/daily", clients)):
                passed[client] += allowed
        ask_on(node, "/often", [f"made-up-{cycle}-{number}" for number in range(70_000)])
        time.sleep(10)  # the flood has expired
    evicted = metric(node, "tollgate_store_evicted_total")
    node.stop()
    most = max(passed.values())
    return most < 125 and evicted > 0, f"{most} at most; {evicted:.0f} keys evicted"


@attack("floods", f"keys of 4 KB each, {FLOOD // 10:,} of them", BOUND)
def long_keys():
    node = Node(f"memory: {MEMORY}MiB\nrules_db: none\nrules:\n- {{ id: five, limit: 5/h, key: user }}\n")
    hit(node, (f"{number:08}" + "x" * 4_000 for number in range(FLOOD // 10)))
    memory = peak(node)
    node.stop()
    return within(memory), f"{memory:.0f} MB"


@attack("floods", "tracked keys: 300,000 made-up ones under `track: true`", "100,000 of a rule are kept: below 60 MB")
def tracked():
    node = Node("memory: 64MiB\nrules_db: none\nrules:\n- { id: five, limit: 5/h, key: user, track: true }\n")
    before = resident(node)
    hit(node, (f"made-up-{number}" for number in range(300_000)))
    grown = resident(node) - before
    node.stop()
    return grown < 60, f"{grown:.0f} MB more"
