"""Processes, ports and folders that end with the run."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOON = 60.0
"""What must happen soon, on a busy machine too (seconds)."""

_STARTED: list["Process"] = []
_FOLDER = Path(tempfile.mkdtemp(prefix="tollgate-tests-"))
_FOLDER.chmod(0o755)  # PostgreSQL runs as another user inside
_ports = range(10_000, 30_000)
"""Outside the range that the system hands out by itself."""
_next_port = os.getpid() * 67


def use_share_of_ports(number: int, shares: int) -> None:
    """For processes that run at the same time: otherwise one could take a port between another's check and its use."""
    global _ports
    size = len(_ports) // shares
    _ports = _ports[number * size : (number + 1) * size]


def free_port() -> int:
    global _next_port
    for _ in _ports:
        _next_port += 1
        port = _ports[_next_port % len(_ports)]
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_FOLDER))


def find(command: str) -> str | None:
    """Where a command is: in the folder that scripts/servers fills, on the PATH, or with PostgreSQL's programs."""
    bundled = ROOT / "target/servers/bin" / command
    if bundled.exists():
        return str(bundled)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{command}"))
    return shutil.which(command) or (str(versions[-1]) if versions else None)


class Process:
    def __init__(self, command: list, log: Path, **options):
        self.log = log
        with open(log, "ab") as out:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, **options
            )
        _STARTED.append(self)

    def running(self) -> bool:
        return self.child.poll() is None

    def signal(self, name: str) -> None:
        self.child.send_signal(getattr(signal, f"SIG{name}"))

    def end(self, name: str = "TERM") -> int:
        """Sends a signal that ends it, and returns its exit code."""
        if self.running():
            self.signal(name)
        try:
            return self.child.wait(SOON)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise AssertionError(f"{self.child.args[0]} did not end within {SOON:.0f} s") from None

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def wait_until(what: str, holds, within: float = SOON) -> float:
    """Returns once `holds()`, with the seconds it took."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > within:
            raise AssertionError(f"waited {within:.0f} s in vain: {what}")
        time.sleep(0.01)
    return time.monotonic() - start


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


@atexit.register
def _finish() -> None:
    for process in reversed(_STARTED):
        if process.running():
            process.child.kill()
            process.child.wait()
    shutil.rmtree(_FOLDER, ignore_errors=True)
