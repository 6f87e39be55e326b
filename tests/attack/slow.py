"""Clients that are slow, silent, or do not read."""

import socket
import struct
import time

from measure import resident, send, status
from node import Node, call
from report import attack
from servers import Api
from upstreams import Upstream

PROXY = "rules_db: none\nmemory: 16MiB\nupstreams: [ '{api}' ]\n"


def proxy(more: str = "", api: Api | Upstream | None = None) -> Node:
    return Node(PROXY.format(api=(api or Api()).url) + more)


@attack("slow", "5,000 connections that send half a head and wait", "others are answered; less than 40 KB each")
def silent():
    node = proxy("rules: [{ id: many, limit: 1000000/h, key: ip }]\n")
    before = resident(node)
    connections = []
    for _ in range(5_000):
        connection = socket.create_connection(("127.0.0.1", node.proxy), 10)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ")
        connections.append(connection)
    answered = sum(call(node.proxy, "GET", "/").status == 200 for _ in range(20))
    each = (resident(node) - before) * 1000 / len(connections)
    for connection in connections:
        connection.close()
    node.stop()
    return answered == 20 and each < 40, f"{answered} of 20 answered; {each:.1f} KB each"


def idle_after(request: bytes) -> tuple[bool, str]:
    node = proxy("rules: [{ id: many, limit: 1000000/h, key: ip }]\n")
    before = resident(node)
    connections = []
    for _ in range(2_000):
        connection = socket.create_connection(("127.0.0.1", node.proxy), 30)
        connection.sendall(request)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200"), "the request is answered"
        connections.append(connection)
    each = (resident(node) - before) * 1000 / len(connections)
    for connection in connections:
        connection.close()
    node.stop()
    return each < 40, f"{each:.1f} KB each"


@attack("slow", "2,000 connections that idle after a body of 200 KB", "less than 40 KB each is kept")
def idle_after_body():
    return idle_after(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + bytes(200_000))


@attack("slow", "2,000 connections that idle after a head of 55 KB", "less than 40 KB each is kept")
def idle_after_head():
    return idle_after(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"v" * 1_000) for n in range(55)) + b"\r\n")


@attack("slow", "a body of which a byte comes every second", "408 within 30 s and what the machine adds")
def trickle():
    node = proxy()
    start = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", node.proxy), 1) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        while not answer and time.monotonic() - start < 90:
            connection.send(b"x")
            try:
                answer = connection.recv(4096)
            except TimeoutError:
                pass
            except OSError:
                break
    took = time.monotonic() - start
    node.stop()
    return status(answer) == 408 and took < 60, f"{status(answer)} after {took:.0f} s"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value: str) -> bytes:
    """A string of HPACK, not compressed."""
    return bytes([len(value)]) + value.encode()


@attack("slow", "HTTP/2 with a window of 0: 100 streams that never take a byte", "each is reset after proxy.idle_timeout (2 s here)")
def zero_window():
    api = Large(10_000)
    node = Node(PROXY.format(api=api.url) + "proxy: { idle_timeout: 2s }\n")
    settings = frame(4, 0, 0, struct.pack(">HI", 4, 0))  # INITIAL_WINDOW_SIZE: 0
    head = b"\x82\x86\x84" + b"\x01" + text("x.example")  # GET, http, /, :authority
    with socket.create_connection(("127.0.0.1", node.proxy), 30) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        connection.sendall(b"".join(frame(1, 5, 1 + 2 * number, head) for number in range(100)))
        start = time.monotonic()
        reset, data = 0, b""
        while reset < 100 and time.monotonic() - start < 60:
            part = connection.recv(65536)
            if not part:
                break
            data += part
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                length, kind = int.from_bytes(data[:3], "big"), data[3]
                reset += kind == 3
                data = data[9 + length :]
        took = time.monotonic() - start
    node.stop()
    return reset == 100 and took < 30, f"{reset} reset within {took:.1f} s"


@attack("slow", "a body that is called a gRPC call, over HTTP/2 to an API of HTTP/1.1, of which a byte comes every second", "answered or reset within 30 s and what the machine adds")
def trickle_as_grpc():
    # It reads the body to its end.
    api = Upstream(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), until=b"0\r\n\r\n")
    node = proxy("", api)
    head = b"\x83\x86\x84" + b"\x01" + text("x.example") + b"\x0f\x10" + text("application/grpc")  # POST, http, /, :authority, content-type
    ended, data = False, b""
    with socket.create_connection(("127.0.0.1", node.proxy), 30) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, head))
        connection.settimeout(1)
        start = time.monotonic()
        while not ended and time.monotonic() - start < 90:
            try:
                connection.sendall(frame(0, 0, 1, b"x"))
                data += connection.recv(65536)
            except TimeoutError:
                pass
            except OSError:
                break
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                ended = ended or (data[3] in (1, 3) and data[8] == 1)  # HEADERS or RST_STREAM
                data = data[9 + int.from_bytes(data[:3], "big") :]
    took = time.monotonic() - start
    node.stop()
    return ended and took < 60, f"{'ended' if ended else 'not ended'} after {took:.0f} s"


@attack("slow", "one client sends 1,200 bodies of 60 KB for `json:email` and ends none", "others are answered: it has an eighth of 64 MiB")
def unfinished_bodies():
    node = proxy("trusted_proxies: [127.0.0.1]\nrules: [{ id: many, limit: 1000000/h, key: 'json:email' }]\n")
    connections = []
    for _ in range(1_200):
        connection = socket.create_connection(("127.0.0.1", node.proxy), 30)
        connection.sendall(b'POST / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.1\r\ncontent-length: 100000\r\n\r\n{"x":"' + b"x" * 60_000)
        connections.append(connection)

    def post(client: str) -> int:
        body = b'{"email":"a@example.com","x":"' + b"x" * 60_000 + b'"}'
        head = f"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-forwarded-for: {client}\r\ncontent-length: {len(body)}\r\n\r\n"
        return status(send(node.proxy, head.encode() + body))

    answered = sum(post(f"198.51.100.{number}") == 200 for number in range(20))
    for connection in connections:
        connection.close()
    node.stop()
    return answered == 20, f"{answered} of 20 answered"


@attack("slow", "200 clients that ask for 1 MB each and never read it", "others are answered; less than 600 KB each")
def not_reading():
    api = Large(1_000_000)
    node = Node(PROXY.format(api=api.url) + "rules: [{ id: many, limit: 1000000/h, key: ip }]\n")
    before = resident(node)
    connections = []
    for _ in range(200):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", node.proxy))
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        connections.append(connection)
    answered = sum(call(node.proxy, "GET", "/").status == 200 for _ in range(20))
    each = (resident(node) - before) * 1000 / len(connections)
    for connection in connections:
        connection.close()
    node.stop()
    return answered == 20 and each < 600, f"{answered} of 20 answered; {each:.0f} KB each"


class Large:
    """An API whose every answer has so many bytes."""

    def __init__(self, size: int):
        body = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
        self.upstream = Upstream(lambda connection: connection.sendall(body))

    @property
    def url(self) -> str:
        return self.upstream.url
