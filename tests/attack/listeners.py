"""Clients of the Redis protocol, of gRPC and of WebSockets that are slow, greedy or many."""

import socket
import struct
import time
from contextlib import closing

from measure import drain, peak, resident
from node import Node
from report import attack
from slow import frame, text
from upstreams import Upstream

RULES = "rules_db: none\nmemory: 16MiB\nrules: [{ id: many, limit: 1000000/h, key: user }]\n"


def connect(port: int, timeout: float = 30.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def open_connections(node: Node, listener: str) -> int:
    lines = node.admin("GET", "/metrics").text.splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith(f'tollgate_connections{{listener="{listener}"}}'))


def is_closed(connection: socket.socket) -> bool:
    """Whether the node has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def array(*words: bytes) -> bytes:
    """A command of the Redis protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


@attack("slow", "100 Redis clients that send 250 KB of a command, then a byte a second", "closed 30 s after the command began, and what the machine adds; less than 700 KB each")
def trickled_commands():
    node = Node(RULES)
    before = resident(node)
    begun = array(b"DEL", *[b"k" * 60_000] * 5)[:250_000]
    clients = [connect(node.resp) for _ in range(100)]
    for client in clients:
        client.sendall(begun)
    start = time.monotonic()
    each = 0.0
    open_clients = clients
    while open_clients and time.monotonic() - start < 90:
        time.sleep(1)
        each = max(each, (resident(node) - before) * 1000 / len(clients))
        for client in open_clients:
            try:
                client.send(b"k")
            except OSError:
                pass
        open_clients = [client for client in open_clients if not is_closed(client)]
    took = time.monotonic() - start
    for client in clients:
        client.close()
    node.stop()
    return not open_clients and took < 60 and each < 700, f"{100 - len(open_clients)} closed within {took:.0f} s; {each:.0f} KB each"


@attack("slow", "a Redis client that asks for 200 replies of 80 KB and reads none", "disconnected after 20 s; less than 10 MB")
def unread_replies():
    node = Node(RULES)
    before = peak(node)
    start = time.monotonic()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(1)
    client.connect(("127.0.0.1", node.resp))
    commands = array(b"COMMAND", b"INFO", *[b"cl.throttle"] * 1_000) * 200
    while commands and time.monotonic() - start < 60:
        try:
            commands = commands[client.send(commands) :]
        except TimeoutError:
            pass
        except OSError:
            break
    while open_connections(node, "resp") > 0 and time.monotonic() - start < 60:
        time.sleep(0.2)
    took = time.monotonic() - start
    grown = peak(node) - before
    client.close()
    node.stop()
    return took < 45 and grown < 10, f"disconnected after {took:.0f} s; {grown:.1f} MB"


def grpc_head(path: str) -> bytes:
    """The headers of a call, not compressed: POST, http, path, authority, content type."""
    return b"\x83\x86\x04" + text(path) + b"\x01" + text("x") + b"\x0f\x10" + text("application/grpc")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"


class Frames:
    """Reads the frames of HTTP/2, as they arrive, and acknowledges settings: only then they apply."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.data = b""
        self.is_open = True

    def arrived(self, wait: float):
        self.connection.settimeout(wait)
        try:
            part = self.connection.recv(1 << 16)
            self.is_open = part != b""
            self.data += part
        except TimeoutError:
            pass
        except OSError:
            self.is_open = False
        while len(self.data) >= 9 and len(self.data) >= 9 + int.from_bytes(self.data[:3], "big"):
            length = int.from_bytes(self.data[:3], "big")
            kind, stream = self.data[3], int.from_bytes(self.data[5:9], "big")
            payload, self.data = self.data[9 : 9 + length], self.data[9 + length :]
            if kind == 4 and payload:
                self.connection.sendall(frame(4, 1, 0, b""))
            yield kind, stream, payload


@attack("slow", "gRPC reflection: requests without end from a client with a window of 0", "no more than 512 KiB of them are taken, and the call ends after 20 s; less than 10 MB")
def reflection():
    node = Node(RULES)
    before = peak(node)
    message = b"\0" + struct.pack(">I", 2_002) + b"\x1a\xcf\x0f" + b"x" * 1_999  # file_by_filename
    with closing(connect(node.grpc)) as connection:
        settings = frame(4, 0, 0, struct.pack(">HI", 4, 0))  # INITIAL_WINDOW_SIZE: 0
        connection.sendall(PREFACE + settings + frame(1, 4, 1, grpc_head(REFLECTION)))
        start = time.monotonic()
        window = {0: 65_535, 1: 65_535}
        sent, heads, ended = 0, 0, False
        frames = Frames(connection)
        while not ended and frames.is_open and time.monotonic() - start < 60:
            for kind, stream, payload in frames.arrived(0.1):
                if kind == 4 and payload:  # SETTINGS: the window of new streams
                    for at in range(0, len(payload), 6):
                        name, value = struct.unpack_from(">HI", payload, at)
                        if name == 4:
                            window[1] += value - 65_535
                elif kind == 8:
                    window[stream] = window.get(stream, 0) + int.from_bytes(payload, "big")
                heads += kind == 1  # the response's, and the trailers
                ended |= heads == 2 or kind == 3
            while not ended and min(window.values()) >= len(message):
                connection.settimeout(10)
                connection.sendall(frame(0, 0, 1, message))
                sent += len(message)
                window = {stream: room - len(message) for stream, room in window.items()}
        took = time.monotonic() - start
    grown = peak(node) - before
    node.stop()
    holds = ended and sent <= 600_000 and took < 45 and grown < 10
    return holds, f"{sent:,} bytes taken; {'ended' if ended else 'open'} after {took:.0f} s; {grown:.1f} MB"


@attack("slow", "gRPC: 1,000 calls on one connection, each with most of a message of 256 KiB", "1 MiB is taken for all of them together; less than 15 MB")
def unfinished_messages():
    node = Node(RULES)
    before = peak(node)
    with closing(connect(node.grpc)) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0, b""))
        start = time.monotonic()
        connection_window, stream_window, sent = 65_535, 65_535, 0
        frames = Frames(connection)
        while time.monotonic() - start < 1:
            for kind, stream, payload in frames.arrived(0.1):
                if kind == 8 and stream == 0:
                    connection_window += int.from_bytes(payload, "big")
                elif kind == 4:
                    for at in range(0, len(payload), 6):
                        name, value = struct.unpack_from(">HI", payload, at)
                        stream_window = value if name == 4 else stream_window
        for number in range(1_000):
            connection.settimeout(10)
            call = 1 + 2 * number
            connection.sendall(frame(1, 4, call, grpc_head(HEALTH)))
            rest = b"\0" + struct.pack(">I", 256 << 10) + bytes(min(stream_window, 255 << 10))
            while rest and connection_window > 0:
                part = rest[: min(16_384, connection_window)]
                connection.sendall(frame(0, 0, call, part))
                rest = rest[len(part) :]
                sent += len(part)
                connection_window -= len(part)
            for kind, stream, payload in frames.arrived(0.01):
                if kind == 8 and stream == 0:
                    connection_window += int.from_bytes(payload, "big")
            if time.monotonic() - start > 9:
                break  # from 10 s on the first calls end, and make room for others
        taken = sent
    grown = peak(node) - before
    node.stop()
    return taken <= 1_100_000 and grown < 15, f"{taken:,} bytes taken; {grown:.1f} MB"


@attack("doors", "100 WebSockets of one client address (listen.per_address: 3)", "3 are served, and counted as connections while they are open")
def websockets():
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: chat\r\nconnection: upgrade\r\n\r\n"

    def answer(connection: socket.socket) -> None:
        connection.sendall(upgrade)
        drain(connection)

    api = Upstream(answer)
    config = f"{RULES}upstreams: [ '{api.url}' ]\nproxy_protocol: [proxy]\ntrusted_proxies: [127.0.0.1]\n"
    node = Node(config, listen=", per_address: 3")
    clients = []
    served = 0
    for _ in range(100):
        client = connect(node.proxy)
        client.sendall(b"PROXY TCP4 203.0.113.1 198.51.100.1 1000 80\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n")
        try:
            served += client.recv(4096).startswith(b"HTTP/1.1 101")
        except OSError:
            pass
        clients.append(client)
    # The last of those that were refused may not have ended yet.
    ends = time.monotonic() + 5
    while (counted := open_connections(node, "proxy")) > served and time.monotonic() < ends:
        time.sleep(0.01)
    for client in clients:
        client.close()
    node.stop()
    return served == 3 and counted == 3, f"{served} served, {counted} counted"
