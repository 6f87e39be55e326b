"""Upstreams that lie, stall, or never end."""

import socket
import threading
import time

from measure import peak, resident, send, status
from node import Node, call
from report import attack


class Upstream:
    """Answers each connection's first request by hand, as `answer(connection)` says, and closes.

    With `until` it reads so far first."""

    def __init__(self, answer, until: bytes = b""):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.accepted = 0
        self.answer = answer
        self.until = until
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            self.accepted += 1
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            try:
                data = connection.recv(65536)
                while not data.endswith(self.until):
                    data = data[-len(self.until) :] + connection.recv(65536)
                self.answer(connection)
            except OSError:
                pass


def behind(answer) -> Node:
    upstream = Upstream(answer)
    return Node(f"rules_db: none\nmemory: 16MiB\nupstreams: [ '{upstream.url}' ]\n")


def endless(connection: socket.socket, head: bytes, part: bytes) -> None:
    connection.sendall(head)
    for _ in range(200_000_000 // len(part)):
        connection.sendall(part)


CASES = [
    ("a head without end", lambda c: endless(c, b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"v" * 4000 + b"\r\n"), 502),
    ("one header without end", lambda c: endless(c, b"HTTP/1.1 200 OK\r\nx-more: ", b"v" * 4000), 502),
    ("bytes that are not HTTP", lambda c: endless(c, b"\x00\xff", b"\x00\xff" * 2000), 502),
    ("1xx responses without end", lambda c: endless(c, b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 50), 502),
    ("a connection closed at once", lambda c: None, 502),
    ("two different lengths", lambda c: c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"), 502),
]

for what, answer, expected in CASES:

    @attack("upstreams", f"an upstream sends {what}", f"{expected} to the client, less than 20 MB of memory")
    def lies(answer=answer, expected=expected):
        node = behind(answer)
        before = resident(node)
        answers = [call(node.proxy, "GET", "/", timeout=60).status for _ in range(3)]
        grown = peak(node) - before
        node.stop()
        # An upstream that keeps failing is rested, and the next request is told so.
        return answers[0] == expected and set(answers) <= {expected, 503} and grown < 20, f"{answers}, {grown:.0f} MB"


@attack("upstreams", "an upstream promises 1 GB and sends 10 bytes", "the client's connection is closed, so that it does not take it for whole")
def short():
    node = behind(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n0123456789"))
    answer = send(node.proxy, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", timeout=30)
    node.stop()
    return status(answer) == 200 and answer.endswith(b"0123456789"), "closed after 10 bytes"


@attack("upstreams", "one of two upstreams accepts and stays silent (response_timeout 1 s)", "after three 504 it is left alone: 20 more requests are answered by the other")
def silent():
    silent = Upstream(lambda connection: time.sleep(20))
    sound = Upstream(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"))
    node = Node(f"rules_db: none\nmemory: 16MiB\nupstreams: [ '{silent.url}', '{sound.url}' ]\nproxy: {{ response_timeout: 1s }}\n")
    failed = 0
    while failed < 3:
        failed += call(node.proxy, "GET", "/", timeout=60).status == 504
    answered = sum(call(node.proxy, "GET", "/", timeout=60).status == 200 for _ in range(20))
    node.stop()
    return answered == 20, f"{answered} of 20 answered; asked {silent.accepted} times"


@attack("upstreams", "a response of 500 MB to a client that reads slowly", "less than 20 MB of memory")
def large():
    node = behind(lambda c: endless(c, b"HTTP/1.1 200 OK\r\ncontent-length: 500000000\r\n\r\n", bytes(65536)))
    before = resident(node)
    with socket.create_connection(("127.0.0.1", node.proxy), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(100):
            connection.recv(4096)
            time.sleep(0.01)
    grown = peak(node) - before
    node.stop()
    return grown < 20, f"{grown:.0f} MB"
