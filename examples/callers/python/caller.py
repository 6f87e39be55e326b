"""Asks Tollgate's decision API, with a deadline. Without an answer the caller fails open or closed.

    echo '{"user":"42"}' | python3 caller.py open 100 http://127.0.0.1:8080 http://10.0.0.2:8080

Reads a request from each line of stdin, and writes a verdict for each. Arguments: open or closed, the deadline in
milliseconds, and the nodes, nearest first. Only what Python ships is used. A `Caller` may be shared by threads.
"""
import http.client
import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Optional
from urllib.parse import urlsplit

MAX_REQUEST = 256 << 10  # bytes; Tollgate reads no more
MAX_ANSWER = 1 << 20
REST = 1.0  # seconds that a node is left alone after it has failed
VERDICTS = (200, 403, 429, 503)  # allowed, banned, over the limit, a rule that fails closed
REJECTED = (400, 413)  # a value that is invalid or too long: never a reason to fail open


@dataclass
class Verdict:
    allowed: bool
    decided: bool  # by Tollgate; otherwise this is how the caller fails
    status: int  # for the client: 200, 400, 403, 413, 429 or 503
    reason: str
    retry_after_ms: Optional[int] = None
    delay_ms: int = 0  # wait so long before going on


class NoVerdict(Exception):
    """An answer, but not one of Tollgate's, such as a load balancer's own 503."""


class Caller:
    def __init__(self, nodes, deadline, fail_open):
        """`deadline` is in seconds. Give addresses, not names: looking up a name has no deadline."""
        self.nodes = [(url.hostname, url.port or 80) for url in map(urlsplit, nodes)]
        self.deadline, self.fail_open = deadline, fail_open
        self.rests = dict.fromkeys(self.nodes, 0.0)  # until when
        self.local = threading.local()  # each thread has its own connections

    def check(self, request) -> Verdict:
        body, end = json.dumps(request).encode(), time.monotonic() + self.deadline
        if len(body) > MAX_REQUEST:
            return Verdict(False, True, 413, "the request is too long")
        why = "every node failed less than a second ago"
        for node in self.nodes:
            if time.monotonic() < self.rests[node]:
                continue
            try:
                return self._ask(node, body, end)
            except ConnectionRefusedError as error:  # nothing was sent: the next node may be asked
                why = str(error)
                self.rests[node] = time.monotonic() + REST
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
                self.rests[node] = time.monotonic() + REST
                break
            except NoVerdict as error:
                why = str(error)
                break
        return Verdict(self.fail_open, False, 200 if self.fail_open else 503, why)

    def _ask(self, node, body, end):
        connections = self.local.__dict__.setdefault("connections", {})
        kept = connections.pop(node, None)  # comes back if all goes well
        try:
            connection = kept or _Connection(*node)
            answer = connection.post(body, end)
        except (ConnectionResetError, BrokenPipeError):
            if not kept:
                raise
            connection = _Connection(*node)  # the node closed the kept one meanwhile
            answer = connection.post(body, end)
        connections[node] = connection
        return _verdict(*answer)


def _verdict(status, body):
    try:
        told = json.loads(body) if status in VERDICTS + REJECTED else {}
        if status in REJECTED:
            return Verdict(False, True, status, told["detail"])
        return Verdict(bool(told["allowed"]), True, status, told["reason"], told["retry_after_ms"], told["delay_ms"])
    except (ValueError, KeyError, TypeError):
        raise NoVerdict(f"status {status} without a verdict: {body[:200]!r}") from None


class _Connection(http.client.HTTPConnection):
    def post(self, body, end):
        self.end = end
        if self.sock:
            self.sock.end = end
        try:
            self.request("POST", "/v1/check", body, {"content-type": "application/json"})
            response = self.getresponse()
            answer = response.read(MAX_ANSWER)
            if not response.isclosed():
                raise http.client.HTTPException("the answer is too long")
            return response.status, answer
        except BaseException:
            self.close()
            raise

    def connect(self):
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.sock = _Socket(family, socket.SOCK_STREAM)
        self.sock.end = self.end
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(self.sock.rest())
        self.sock.connect((self.host, self.port))


class _Socket(socket.socket):
    """One deadline for everything: the timeout of a socket alone would start again with every byte."""

    end = 0.0

    def rest(self):
        rest = self.end - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        return rest

    def recv_into(self, *args):
        self.settimeout(self.rest())
        return super().recv_into(*args)

    def sendall(self, *args):
        self.settimeout(self.rest())
        return super().sendall(*args)


def main():
    failing, deadline_ms, *nodes = sys.argv[1:]
    caller = Caller(nodes, int(deadline_ms) / 1000, failing == "open")
    for line in sys.stdin:
        print(json.dumps(asdict(caller.check(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
