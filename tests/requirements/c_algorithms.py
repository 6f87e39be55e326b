"""C. Algorithms. The node's clock is set (libfaketime), and a clean restart moves it: downtime counts as elapsed time."""

import time
from concurrent.futures import ThreadPoolExecutor

from node import Node, call, pause
from servers import Api, Memcached, Redis
from table import check, equal, true


DAY = "2026-03-04"


def node_with(*rules: str, at: str = "11:01:05", rest: str = "") -> Node:
    return Node("rules_db: none\n" + rest + "rules:\n" + "".join(f"  - {rule}\n" for rule in rules), at=f"{DAY} {at}")


def remaining(node: Node, **request) -> int | None:
    """What is left after an admitted request; None for a denied one."""
    answer = node.check(**request).body
    return answer["remaining"] if answer["allowed"] else None


@check("C1", "token bucket, boundary refill 5/min: 11:01:05 → 4 left, 11:01:10 → 3, 11:02:05 → 4")
def calendar_refill() -> None:
    node = node_with("{ id: a, match: /a, key: user, limit: 5/m, algorithm: token-bucket, refill: calendar }")
    left = [remaining(node, path="/a", user="1")]
    for at in ("11:01:10", "11:02:05"):
        node.restart(f"{DAY} {at}")
        left.append(remaining(node, path="/a", user="1"))
    equal(left, [4, 3, 4])


@check("C1", "token bucket, continuous and by tick: burst at once, then the rate; cost; long idle is full, not fuller")
def token_bucket() -> None:
    node = node_with(
        "{ id: a, match: /a, limit: 6/m, burst: 11, algorithm: token-bucket }",
        "{ id: t, match: /t, limit: 6/m, algorithm: token-bucket, refill: tick, tick: 20s }",
    )
    equal([node.passed(13, path=path) for path in ("/a", "/t")], [11, 6])
    node.restart(f"{DAY} 11:01:36")  # 31 s: three continuous tokens; one tick, at :20, of two tokens
    equal([node.passed(5, path=path) for path in ("/a", "/t")], [3, 2])
    node.restart(f"{DAY} 18:00:01")
    equal(node.check(path="/a", cost=12).status, 429, "more than the burst")
    equal([remaining(node, path="/a", cost=11), remaining(node, path="/t", cost=6)], [0, 0])


@check("C2", "leaky bucket 5/min, six at once: delays 0, 12, 24, 36, 48 s, the sixth is refused")
def leaky_bucket_asked() -> None:
    node = node_with("{ id: a, match: /a, limit: 5/m, algorithm: leaky-bucket }")
    answers = [node.check(path="/a").body for _ in range(6)]
    delays = [answer["delay_ms"] / 1000 for answer in answers if answer["allowed"]]
    equal([answer["allowed"] for answer in answers], [True] * 5 + [False])
    true(all(12 * n - 2 <= delay <= 12 * n for n, delay in enumerate(delays)), f"delays {delays}")
    node.restart(f"{DAY} 11:01:18")
    equal(node.passed(3, path="/a"), 1, "one has leaked after 12 s")


@check("C2", "a full queue refuses, a held request is released at its turn by the proxy (8/s, 9 places)")
def leaky_bucket_held() -> None:
    api = Api()
    node = Node(f"rules_db: none\nupstreams: [{api.url}]\nrules: [{{ id: a, match: /a, limit: 8/s, burst: 9, algorithm: leaky-bucket }}]\n")
    start = time.monotonic()
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: call(node.proxy, "GET", "/a").status, range(24)))
    leaked = 8 * (time.monotonic() - start)
    true(9 <= answers.count(200) <= 9 + leaked + 1 and answers.count(200) + answers.count(429) == 24, f"{answers}")
    times = sorted(at for at, *_ in api.requests)
    gaps = [late - early for early, late in zip(times, times[1:])]
    true(times[-1] - times[0] >= (len(times) - 1) / 8 - 0.1, f"released over {times[-1] - times[0]:.2f} s: {gaps}")


@check("C2", "burst: 13, hold_after: 8 is nginx's burst=12 delay=8: nine pass at once, four are held, the 14th is refused")
def leaky_bucket_delay() -> None:
    node = node_with("{ id: a, match: /a, limit: 1/m, burst: 13, hold_after: 8, algorithm: leaky-bucket }")
    answers = [node.check(path="/a").body for _ in range(14)]
    equal([answer["allowed"] for answer in answers], [True] * 13 + [False])
    equal([answer["delay_ms"] > 0 for answer in answers[:13]], [False] * 9 + [True] * 4)


@check("C3", "fixed window 7/min: aligned to the clock, or from the first request and new at exactly start + window with count 1")
def fixed_window() -> None:
    node = node_with(
        "{ id: a, match: /a, limit: 7/m, algorithm: fixed-window }",
        "{ id: f, match: /f, limit: 7/m, algorithm: fixed-window, window: first-hit }",
        at="11:01:40",
    )
    equal([node.passed(9, path=path) for path in ("/a", "/f")], [7, 7])
    node.restart(f"{DAY} 11:02:00")
    equal([node.passed(9, path=path) for path in ("/a", "/f")], [7, 0], "20 s later, in the next minute")
    node.restart(f"{DAY} 11:02:38")
    equal(node.passed(1, path="/f"), 0, "58 s after the first request")
    node.restart(f"{DAY} 11:02:42")
    equal(remaining(node, path="/f"), 6, "a new window begins with count 1")


@check("C4", "sliding log 5/min: the sixth within any minute is refused, at any offset")
def sliding_log() -> None:
    node = node_with("{ id: a, match: /a, limit: 5/m, algorithm: sliding-log }", at="11:01:10")
    admitted = [node.passed(2, path="/a")]
    for at in ("11:01:30", "11:01:50", "11:02:08", "11:02:11", "11:02:32"):
        node.restart(f"{DAY} {at}")
        admitted.append(node.passed(9, path="/a"))
    equal(admitted, [2, 3, 0, 0, 2, 3])


def metric(node: Node, name: str) -> float:
    lines = node.admin("GET", "/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


@check("C4", "the log of a user at 500/hour takes at most 3.5 KB: 1 million of them far less than 12 GB")
def sliding_log_memory() -> None:
    node = Node("rules_db: none\nmemory: 256MiB\nrules: [{ id: a, match: /a, key: user, limit: 500/h, algorithm: sliding-log }]\n")
    users = 200
    before = metric(node, "tollgate_store_bytes")
    for _ in range(500 * users // 1000):  # a batch shares one time, so each user is asked once a batch, in turns
        node.ask("/v1/check/batch", [{"path": "/a", "user": str(n % users)} for n in range(1000)])
    for user in range(0, users, 50):
        equal(node.check(path="/a", user=str(user)).status, 429, "500 are used up")
    each = (metric(node, "tollgate_store_bytes") - before) / users
    true(each <= 3500, f"{each:.0f} bytes a user")


@check("C5", "compacted log 40/min by 10 s: exact in whole steps; on Redis the state has a size bound by the resolution")
def compacted_log() -> None:
    node = node_with("{ id: a, match: /a, limit: 40/m, algorithm: sliding-compact, resolution: 10s }", at="11:01:03")
    admitted = [node.passed(30, path="/a")]
    for at in ("11:01:45", "11:01:58", "11:02:03", "11:02:41"):
        node.restart(f"{DAY} {at}")
        admitted.append(node.passed(50, path="/a"))
    equal(admitted, [30, 10, 0, 30, 10])
    redis = Redis()
    node = Node(f"""rules_db: none
counters: {redis.url}
rules:
  - {{ id: compact, match: /a, limit: 1_000_000/m, algorithm: sliding-compact, resolution: 1s }}
  - {{ id: log, match: /a, limit: 1_000_000/m, algorithm: sliding-log }}
""")
    node.passed(2000, path="/a")
    size = {name: redis.ask("STRLEN", name) for name in redis.names()}
    compact = next(bytes for name, bytes in size.items() if "sliding-compact" in name)
    log = next(bytes for name, bytes in size.items() if "sliding-log" in name)
    true(compact < 61 * 40 and log > 2000, f"{size}")


@check("C6", "sliding counter: limit 55,000, 50,000 in the minute before, 31,534 at second 25 is refused; 25,833 fit")
def sliding_counter() -> None:
    node = node_with("{ id: a, match: /a, limit: 55000/m, algorithm: sliding-counter }", at="11:01:30")
    equal(remaining(node, path="/a", cost=50_000), 5_000)
    node.restart(f"{DAY} 11:02:25")
    refused = node.check(path="/a", cost=31_534).body
    equal(refused["allowed"], False)
    left = refused["remaining"]
    true(25_833 <= left <= 25_833 + 50_000 // 60 * 3, f"{left} left at second 25 (25,833 by the definition, more by 833 each second)")
    equal(node.check(path="/a", cost=25_833).status, 200)


@check("C7", "tiered window: at 23:30:33 exactly the last 86,400 seconds count, and on Memcached at most 142 buckets are read")
def tiered_window() -> None:
    rule = "{ id: a, match: /a, key: user, limit: 1000/d, algorithm: tiered-window }"
    node = node_with(rule, at="23:30:33")
    node.check(path="/a", user="1", cost=500)
    for at, cost in (("2026-03-04 23:30:36", 40), ("2026-03-04 23:45:00", 30), ("2026-03-05 00:10:00", 20), ("2026-03-05 23:29:59", 10), ("2026-03-05 23:30:10", 5)):
        node.restart(at)
        equal(node.check(path="/a", user="1", cost=cost).status, 200)
    node.restart("2026-03-05 23:30:33")
    used = node.key("a", "user:1")["limits"][0]["used"]
    equal(used, 105, "the 500 of 23:30:33 the day before have just left, those of 23:30:36 have not")
    memcached = Memcached()
    node = node_with(rule, at="23:30:33", rest=f"counters: {memcached.url}\n")

    def gets() -> int:
        return sum(int(line.split()[2]) for line in memcached.ask("stats") if line.split()[1] in ("cmd_get", "cmd_meta"))

    node.check(path="/a", user="1")
    before = gets()
    node.check(path="/a", user="2")
    read = gets() - before
    true(0 < read <= 142 + 6, f"{read} reads and updates (at most 142 buckets, and one update of each level)")


@check("C7", "tiered window, coarser levels: a day of minutes and hours counts to the minute")
def tiered_window_coarse() -> None:
    node = node_with("{ id: a, match: /a, limit: 9/d, algorithm: tiered-window, levels: [m, h] }", at="10:00:20")
    equal(node.passed(12, path="/a"), 9)
    node.restart("2026-03-05 09:59:50")
    equal(node.passed(1, path="/a"), 0)
    node.restart("2026-03-05 10:00:02")
    equal(node.passed(12, path="/a"), 9, "the minute 10:00 of the day before has left")


@check("C8", "GCRA, the default: burst 3 at 6/min, one more each 10 s; Retry-After is when it passes, and not before")
def gcra() -> None:
    node = node_with("{ id: a, match: /a, limit: 6/m, burst: 3 }")
    equal(node.passed(5, path="/a"), 3)
    wait = node.check(path="/a").body["retry_after_ms"]
    true(8_000 < wait <= 10_000, f"retry after {wait} ms")
    node.restart(f"{DAY} 11:01:14")
    equal(node.passed(1, path="/a"), 0)
    node.restart(f"{DAY} 11:01:16")
    equal(node.passed(3, path="/a"), 1)


@check("C8", "Retry-After is exact: refused until then, admitted afterwards, for each algorithm (real time)")
def exact_retry() -> None:
    forms = ["gcra", "token-bucket", "fixed-window", "sliding-log", "sliding-counter", "tiered-window", "sliding-compact"]
    extra = {"sliding-compact": ", resolution: 1s", "tiered-window": ", levels: [s]"}
    rules = "".join(f"  - {{ id: {form}, match: /{form}, limit: 2/3s, algorithm: {form}{extra.get(form, '')} }}\n" for form in forms)
    node = Node(f"rules_db: none\nrules:\n{rules}")
    for form in forms:
        while node.check(path=f"/{form}").status == 200:
            pass
        denied = node.check(path=f"/{form}", peek=True).body
        asked = time.monotonic()
        wait = denied["retry_after_ms"] / 1000
        while True:
            before = time.monotonic()
            answer = node.check(path=f"/{form}", peek=True)
            after = time.monotonic()
            if after - asked < wait - 0.05:
                equal(answer.status, 429, f"{form}: {asked + wait - after:.3f} s too early")
            if before - asked > wait + 0.05:
                equal(answer.status, 200, f"{form}: {before - asked - wait:.3f} s after its time")
                break
            pause(0.02)
