"""What the system knows of a node's process, and sockets that speak HTTP by hand."""

import socket
from contextlib import closing
from pathlib import Path


def _status(node, name: str) -> int:
    with open(f"/proc/{node.process.child.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def resident(node) -> float:
    """MB."""
    return _status(node, "VmRSS") / 1e6


def peak(node) -> float:
    """MB."""
    return _status(node, "VmHWM") / 1e6


def cpu(node) -> float:
    """Seconds, of all threads that live."""
    tasks = Path(f"/proc/{node.process.child.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def metric(node, name: str) -> float:
    """The sum over all labels."""
    lines = node.admin("GET", "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def send(port: int, data: bytes, timeout: float = 60.0) -> bytes:
    """Sends bytes on a connection of its own, and returns what comes until it is closed or `timeout` passes without a byte."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout)) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # closed by the node: what it said before is read below
        return drain(connection)


def drain(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except OSError:
        pass
    return b"".join(parts)


def status(answer: bytes) -> int:
    """The status of the first response, 0 where there is none."""
    line = answer.split(b"\r\n", 1)[0].split(b" ")
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0
