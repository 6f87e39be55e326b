"""Automatic bans: evaded, provoked and amplified."""

from concurrent.futures import ThreadPoolExecutor

from floods import hit
from measure import resident
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
