"""Automatic bans: evaded, provoked and amplified."""

from concurrent.futures import ThreadPoolExecutor

from floods import hit
from measure import metric, resident
from node import Node
from report import attack

RULES = "rules_db: none\nmemory: 256MiB\nrules:\n- {{ id: one, limit: 1/h, key: user, ban: {{ {ban} }} }}\n"


@attack("bans", "30 requests at once beyond a threshold of 3", "one strike: the first ban lasts a minute")
def burst():
    node = Node(RULES.format(ban="after: 3, for: 1m, max: 24h"))
    with ThreadPoolExecutor(30) as pool:
        list(pool.map(lambda _: node.check(user="bob").status, range(30)))
    left = node.check(user="bob").body["retry_after_ms"] / 1000
    node.stop()
    return 0 < left <= 60, f"{left:.0f} s left of it"


@attack("bans", "20 offenders one denial short of a ban, then 200,000 other keys are denied once", "all 20 are banned by their next denial")
def evasion():
    node = Node(RULES.format(ban="after: 6, within: 1h, for: 1h"))
    offenders = [f"offender-{number}" for number in range(20)]
    hit(node, offenders * 6)
    hit(node, (f"other-{number}" for number in range(200_000) for _ in range(2)))
    hit(node, offenders)
    banned = sum(node.check(user=user).body["reason"] == "ban" for user in offenders)
    node.stop()
    return banned == 20, f"{banned} banned"


@attack("bans", "10,000 keys of 3.9 KB have themselves banned", "the process grows by less than 40 MB, its folder by less than 40 MB")
def amplification():
    node = Node("memory: 64MiB\nrules:\n- { id: one, limit: 1/h, key: user, ban: { after: 1, for: 1h } }\n")
    before = resident(node)
    for number in range(0, 10_000, 50):
        users = [f"{each:08}" + "x" * 3_900 for each in range(number, number + 50)]
        hit(node, users)
        hit(node, users)
    grown = resident(node) - before
    node.stop()
    disk = sum(file.stat().st_size for file in node.directory.iterdir()) / 1e6
    return grown < 40 and disk < 40, f"{grown:.0f} MB of memory, {disk:.0f} MB of files"


@attack("bans", "100,000 invented keys of 1 KB have themselves banned under one rule, and fill the list", "an offender of another rule is banned")
def full_list():
    rules = "- { id: one, match: /search, limit: 1/h, key: 'attr:a', ban: { key: ['attr:a', 'attr:b', 'attr:c', 'attr:d'], after: 1, for: 1h } }\n- { id: other, match: /login, limit: 1/h, key: user, ban: { after: 1, for: 1h } }\n"
    node = Node(f"memory: 256MiB\nrules_db: none\nrules:\n{rules}")
    for first in range(0, 100_000, 250):
        check = [{"path": "/search", "attributes": {name: f"{number:08}{name}" + "x" * 240 for name in "abcd"}} for number in range(first, first + 250)]
        node.ask("/v1/check/batch", check)
        node.ask("/v1/check/batch", check)
    full = metric(node, "tollgate_bans_dropped_total") > 0
    reasons = [node.check(path="/login", user="bob").body["reason"] for _ in range(3)]
    node.stop()
    return full and reasons[-1] == "ban", f"{'full' if full else 'not full'}; {', '.join(reasons)}"
