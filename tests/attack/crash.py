"""kill -9, and files that were cut off or damaged."""

import time

from floods import hit
from node import Node
from report import attack

# A fixed window: a limit that refills while the run lasts would look like lost charges.
RULES = "rules_db: none\nmemory: 64MiB\nrules: [{ id: many, limit: 1000000/y, algorithm: fixed-window, key: user }]\n"


@attack("crash", "kill -9 under load (state: { every: 1s })", "what was charged in the last 2 s is lost, at most")
def killed():
    node = Node(RULES)
    users = [f"user-{number}" for number in range(1_000)]
    start, charges = time.monotonic(), []
    while time.monotonic() - start < 6.7:  # not a multiple of the interval: the last write is not recent
        count = hit(node, users)
        charges.append((time.monotonic(), count))
    end = time.monotonic()
    age = node.health()["state"]["age_ms"] / 1000
    node.kill()
    node.start()
    used = sum(1_000_000 - answer["remaining"] for answer in node.ask("/v1/check/batch", [{"user": user, "peek": True} for user in users]).body)
    total = sum(count for _, count in charges)
    late = sum(count for answered, count in charges if answered >= end - 2)
    unsaved = sum(count for answered, count in charges if answered >= end - age)
    node.stop()
    holds = total - min(late, unsaved) <= used <= total
    return holds, f"{total - used:,} of {total:,} lost; {late:,} were charged in the last 2 s, {unsaved:,} in the last {age:.2f} s, which /healthz gave as the age of the saved state"


@attack("crash", "the saved state cut off and damaged at 40 places", "the node starts each time")
def torn():
    node = Node(RULES)
    hit(node, (f"user-{number}" for number in range(2_000)))
    node.stop()
    saved = {file: file.read_bytes() for file in node.directory.iterdir() if file.is_file() and file.name not in ("log", "tollgate.yaml")}
    largest = max(saved, key=lambda file: len(saved[file]))
    started = 0
    for number in range(40):
        for file, data in saved.items():
            file.touch(mode=0o600)
            file.write_bytes(data)
        data = bytearray(saved[largest])
        place = len(data) * number // 40
        largest.write_bytes(data[:place] if number % 2 else bytes(data[:place]) + bytes([data[place] ^ 0xFF]) + bytes(data[place + 1 :]))
        node.start()
        started += 1
        node.kill()
    return started == 40, f"{started} of 40 starts"
