"""Requests made to cost more than their bytes: twice the input may cost 2.2 times the CPU time."""

import threading
import time

from measure import cpu, send, status
from node import Node, call
from report import attack
from slow import proxy
from upstreams import Upstream

LINEAR = 2.2
TRIES = 6
"""Other work on the machine makes a try slower, so one that is linear is enough; one that is not linear never looks so."""


def growth(node: Node, size: int, once, unit: str = "bytes") -> tuple[bool, str]:
    """What doubling the input costs."""

    def cost(size: int) -> float:
        before = cpu(node)
        for _ in range(4):
            once(size)
        return cpu(node) - before

    cost(size)
    for _ in range(TRIES):
        single, double = cost(size), cost(2 * size)
        ratio = double / single
        if ratio <= LINEAR:
            break
    node.stop()
    return ratio <= LINEAR, f"{ratio:.2f} times; {double / 4 * 1000:.1f} ms for {2 * size:,} {unit}"


def chunked(path: str, chunks: bytes, headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}transfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


def whole() -> Upstream:
    """An API that reads a chunked body to its end."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    return Upstream(lambda connection: connection.sendall(answer), until=b"0\r\n\r\n")


def one_byte_chunks(data: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in data)


@attack("work", "a chunked body full of what could begin a request", "twice the bytes cost at most 2.2 times the CPU time")
def looks_like_heads():
    node = proxy("", whole())

    def once(size: int) -> None:
        text = b"POST / " * (size // 7)
        answer = send(node.proxy, chunked("/", b"%x\r\n%s\r\n" % (len(text), text)))
        assert status(answer) == 200, answer[:100]

    return growth(node, 260_000, once)


@attack("work", "a JSON body in chunks of one byte, counted by `json:email`, allowed and denied", "twice the bytes cost at most 2.2 times the CPU time")
def fields():
    node = proxy("rules: [{ id: by-email, match: /login, key: 'json:email', limit: 5/h }]\n", whole())

    def once(size: int) -> None:
        body = b'{"pad":"' + b"x" * (size // 6) + b'","email":"a@example.com"}'
        answer = send(node.proxy, chunked("/login", one_byte_chunks(body), "content-type: application/json\r\n"))
        assert status(answer) in (200, 429), answer[:100]

    return growth(node, 180_000, once)


@attack("work", "many values for both attributes of a banned key (`json:email+cookie:sid`)", "twice the values cost at most 2.2 times the CPU time")
def banned_combinations():
    node = proxy("rules: [{ id: many, limit: 1000000/h, key: ip }]\nbans: [{ key: 'cookie:sid:7+json:email:evil' }]\n")

    def once(size: int) -> None:
        body = "{" + ",".join(f'"email":"{n}"' for n in range(size)) + "}"
        cookies = "; ".join(f"sid={n}" for n in range(size))
        head = f"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncookie: {cookies}\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = send(node.proxy, (head + body).encode())
        assert status(answer) == 403, answer[:100]

    return growth(node, 400, once, "values")


@attack("work", "a head of 48 KB with 90 headers, cookies and a query full of separators", "twice the bytes cost at most 2.2 times the CPU time")
def heads():
    node = proxy("rules: [{ id: by-cookie, key: ['cookie:sid', 'query:q'], limit: 5/h }]\n")

    def once(size: int) -> None:
        part = size // 4
        head = f"GET /?{'a=b&' * (part // 4)}q=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncookie: {'a=b; ' * (part // 5)}sid=1\r\n"
        head += "".join(f"x-{number}: {'v' * (part // 90)}\r\n" for number in range(90)) + "\r\n"
        for _ in range(20):
            send(node.proxy, head.encode())

    return growth(node, 24_000, once)


@attack("work", "one hit of cost 40,000 on a sliding log that counts what it denies", "twice the cost takes at most 2.2 times the CPU time")
def counted_denials():
    node = Node("memory: 64MiB\nrules_db: none\nrules: [{ id: log, limit: 100000/h, key: user, algorithm: sliding-log, count_denied: true }]\n")
    number = 0

    def once(size: int) -> None:
        nonlocal number
        number += 1
        for _ in range(3):
            node.check(user=f"user-{number}", cost=size)

    return growth(node, 40_000, once, "of cost")


@attack("work", "four connections send crafted bodies without end", "/readyz and other clients are answered all the time; SIGTERM ends the node with 0")
def meanwhile():
    node = proxy("rules: [{ id: many, limit: 1000000/h, key: ip }]\n")
    over = threading.Event()
    text = b"POST / " * 75_000
    data = chunked("/", b"%x\r\n%s\r\n" % (len(text), text))

    def attacker() -> None:
        while not over.is_set():
            try:
                send(node.proxy, data, timeout=30)
            except OSError:
                return

    threads = [threading.Thread(target=attacker, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    served, worst = 0, 0.0
    for _ in range(50):
        start = time.monotonic()
        served += call(node.admin_port, "GET", "/readyz").status == 200 and call(node.proxy, "GET", "/").status == 200
        worst = max(worst, time.monotonic() - start)
    start = time.monotonic()
    node.process.signal("TERM")
    code = node.process.child.wait(60)
    took = time.monotonic() - start
    over.set()
    return served == 50 and code == 0, f"{served} of 50 served, the slowest in {worst * 1000:.0f} ms; exit {code} after {took:.1f} s"
