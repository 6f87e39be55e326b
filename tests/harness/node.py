"""A Tollgate node under test, spoken to from outside: HTTP, signals and the command line."""

import http.client
import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import process
from process import ROOT, Process, free_port, wait_until
from table import Missing

BINARY = Path(os.environ.get("TOLLGATE", ROOT / "target/release/tollgate"))
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@dataclass
class Answer:
    status: int
    headers: dict
    text: str

    @property
    def body(self):
        return json.loads(self.text)


def call(port: int, method: str, path: str, body=None, headers: dict | None = None, timeout: float = 30.0, source=None) -> Answer:
    """One HTTP call on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout, source_address=source and (source, 0))
    try:
        return _send(connection, method, path, body, headers)
    finally:
        connection.close()


def _send(connection, method, path, body, headers) -> Answer:
    if body is not None and not isinstance(body, (str, bytes)):
        body = json.dumps(body)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    text = response.read().decode(errors="replace")
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)


class Node:
    """`tollgate serve` with a configuration that says all but the addresses."""

    def __init__(
        self,
        config: str,
        at: str | None = None,
        directory: Path | None = None,
        ready: bool = True,
        admin_port: int | None = None,
        listen: str = "",
    ):
        self.directory = directory or process.folder("node")
        self.http = free_port()
        self.admin_port = admin_port or free_port()
        self.proxy = free_port()
        self.resp = free_port()
        self.grpc = free_port()
        self.listen = listen
        self.config = config
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("TOLLGATE_")}
        self._local = threading.local()
        self.start(at, ready)

    def write(self, config: str) -> None:
        listen = {"http": self.http, "admin": self.admin_port, "resp": self.resp, "grpc": self.grpc}
        if "upstreams:" in config:
            listen["proxy"] = self.proxy
        listen = ", ".join(f"{name}: '127.0.0.1:{port}'" for name, port in listen.items()) + self.listen
        self.config = config
        self.file.write_text(f"listen: {{ {listen} }}\n{config}")

    @property
    def file(self) -> Path:
        return self.directory / "tollgate.yaml"

    def start(self, at: str | None = None, ready: bool = True) -> None:
        """Starts it, with its clock at `at` (UTC) where given: the clock runs on from there."""
        self.write(self.config)
        environment = dict(self.environment)
        if at:
            if not FAKETIME:
                raise Missing("libfaketime (Debian package faketime) is not installed")
            environment |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"@{at}", "TZ": "UTC", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        command = [BINARY, "serve", "-c", self.file]
        self.process = Process(command, self.directory / "log", env=environment)
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            if not self.process.running():
                raise AssertionError("the node ended: " + self.process.text()[-500:])
            return self.ready() == 200

        wait_until("the node is ready", is_ready)

    def ready(self) -> int:
        try:
            return self.admin("GET", "/readyz").status
        except OSError:
            return 0

    def stop(self) -> None:
        code = self.process.end()
        if code != 0:
            raise AssertionError(f"SIGTERM ended the node with {code}: {self.process.text()[-500:]}")

    def kill(self) -> None:
        self.process.kill()

    def restart(self, at: str | None = None) -> None:
        """A clean stop and a start: its counters come along, and the time between counts."""
        self.stop()
        self.start(at)

    def ask(self, path: str, body) -> Answer:
        """Asks the decision API on this thread's connection, made anew where the node has closed it."""
        for last in (False, True):
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=30)
            try:
                return _send(connection, "POST", path, body, None)
            except (OSError, http.client.HTTPException):
                connection.close()
                self._local.connection = None
                if last:
                    raise

    def check(self, **fields) -> Answer:
        return self.ask("/v1/check", fields)

    def passed(self, times: int, **fields) -> int:
        """How many of so many requests in a row pass."""
        return sum(self.check(**fields).status == 200 for _ in range(times))

    def admin(self, method: str, path: str, body=None, headers=None) -> Answer:
        return call(self.admin_port, method, path, body, headers)

    def health(self) -> dict:
        return self.admin("GET", "/healthz").body

    def key(self, rule: str, key: str) -> dict:
        return self.admin("GET", f"/v1/keys?rule={quote(rule)}&key={quote(key)}").body

    def cli(self, *arguments, stdin: str | None = None) -> subprocess.CompletedProcess:
        return tollgate(*arguments, "--admin", f"http://127.0.0.1:{self.admin_port}", stdin=stdin)


def tollgate(*arguments, stdin: str | None = None) -> subprocess.CompletedProcess:
    command = [str(BINARY), *(str(each) for each in arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)


def at_once(nodes: list[Node], requests: list[dict], threads: int = 16) -> list[Answer]:
    """Sends the requests in parallel, the nodes in turn; answers in the order of the requests."""

    def send(numbered):
        number, fields = numbered
        return nodes[number % len(nodes)].check(**fields)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(send, enumerate(requests)))


def statuses(answers: list[Answer]) -> dict[int, int]:
    found: dict[int, int] = {}
    for answer in answers:
        found[answer.status] = found.get(answer.status, 0) + 1
    return found


def pause(seconds: float) -> None:
    time.sleep(seconds)
