"""Real servers on private ports: Redis (single, Sentinel, Cluster), Valkey, Memcached, Cassandra, PostgreSQL, an API."""

import http.server
import os
import pwd
import socket
import subprocess
import threading
import time
from pathlib import Path

import process
from process import ROOT, Process, accepts, find, free_port, wait_until
from table import Missing


def need(command: str, source: str) -> str:
    path = find(command)
    if not path:
        raise Missing(f"{command} is not installed; it comes with {source}")
    return path


class Redis:
    """One server of Redis, or of Valkey."""

    def __init__(self, program: str = "redis-server", *arguments: str):
        command = need(program, "scripts/servers" if program == "valkey-server" else "the Debian package redis-server")
        self.directory = process.folder(program)
        self.port = free_port()
        self.command = [command, "--port", self.port, "--bind", "127.0.0.1", "--dir", self.directory, "--save", "", *arguments]
        self.start()

    def start(self) -> None:
        self.process = Process(self.command, self.directory / "log")
        wait_until("Redis answers", lambda: accepts(self.port) and self.ask("PING") == "PONG")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def ask(self, *words):
        return resp(self.port, *words)

    def names(self) -> list[str]:
        return sorted(self.ask("KEYS", "*"))


def resp(port: int, *words):
    """One command over the Redis protocol, its reply as Python values; an error reply raises."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        parts = [str(word).encode() for word in words]
        connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return _reply(connection.makefile("rb"))


def _reply(stream):
    line = stream.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:].decode()
    match kind:
        case b"+":
            return rest
        case b"-":
            raise OSError(rest)
        case b":":
            return int(rest)
        case b"$" if rest == "-1":
            return None
        case b"$":
            return stream.read(int(rest) + 2)[:-2].decode(errors="replace")
        case b"*":
            return [_reply(stream) for _ in range(int(rest))]
    raise OSError(f"unexpected reply {line!r}")


class Sentinels:
    """A primary with one replica, watched by three sentinels."""

    def __init__(self):
        program = need("redis-sentinel", "the Debian package redis-sentinel")
        self.primary = Redis()
        self.replica = Redis("redis-server", "--replicaof", f"127.0.0.1 {self.primary.port}")
        self.ports = []
        for _ in range(3):
            directory, port = process.folder("sentinel"), free_port()
            settings = directory / "sentinel.conf"
            settings.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor main 127.0.0.1 {self.primary.port} 2\n"
                "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
            )
            Process([program, settings], directory / "log")
            self.ports.append(port)
        wait_until("the sentinels know each other and the replica", lambda: all(map(self._is_complete, self.ports)))

    @staticmethod
    def _is_complete(port: int) -> bool:
        try:
            fields = resp(port, "SENTINEL", "MASTER", "main")
        except OSError:
            return False
        known = dict(zip(fields[::2], fields[1::2]))
        return known["num-slaves"] == "1" and known["num-other-sentinels"] == "2"

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in self.ports) + "/main"


class Cluster:
    """A Redis Cluster: three primaries, each with a replica."""

    def __init__(self):
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-require-full-coverage", "no"]
        self.servers = [Redis("redis-server", *options, "--cluster-port", str(free_port())) for _ in range(6)]
        client = need("redis-cli", "the Debian package redis-tools")
        addresses = [f"127.0.0.1:{server.port}" for server in self.servers]
        subprocess.run(
            [client, "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"],
            check=True, capture_output=True, timeout=120,
        )
        wait_until("the cluster is complete", lambda: all("cluster_state:ok" in each.ask("CLUSTER", "INFO") for each in self.servers))

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def names(self) -> list[str]:
        return sorted(name for server in self.servers for name in server.names())


class Memcached:
    def __init__(self, count: int = 1):
        program = need("memcached", "the Debian package memcached")
        user = ["-u", "nobody"] if os.getuid() == 0 else []
        self.ports = [free_port() for _ in range(count)]
        self.servers = []
        for port in self.ports:
            self.servers.append(Process([program, "-l", "127.0.0.1", "-p", port, *user], process.folder("memcached") / "log"))
            wait_until("Memcached listens", lambda: accepts(port))

    @property
    def url(self) -> str:
        return "memcached://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def ask(self, line: str, server: int = 0) -> list[str]:
        """The lines of a reply that ends with END."""
        with socket.create_connection(("127.0.0.1", self.ports[server]), 10) as connection:
            connection.sendall(line.encode() + b"\r\n")
            lines = []
            for text in connection.makefile("r"):
                if text.strip() == "END":
                    return lines
                lines.append(text.strip())
            return lines

    def names(self) -> list[str]:
        lines = [line for server in range(len(self.ports)) for line in self.ask("lru_crawler metadump all", server)]
        return sorted(line.split()[0].removeprefix("key=") for line in lines if line.startswith("key="))


class Cassandra:
    """One server, on 127.0.0.N; later ones join the first."""

    def __init__(self, number: int = 1, seed: "Cassandra | None" = None):
        java = need("java", "the Debian package openjdk-17-jre-headless")
        jars = ROOT / "target/cassandra/lib"
        if not (ROOT / "target/cassandra/version").exists():
            raise Missing("no Cassandra; scripts/get-cassandra fetches it from Maven Central")
        self.host = f"127.0.0.{number}"
        self.directory = process.folder("cassandra")
        self.port = seed.port if seed else free_port()
        self.storage_port = seed.storage_port if seed else free_port()
        (self.directory / "cassandra.yaml").write_text(self._settings(seed or self))
        (self.directory / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
        opened = ["java.base/java.lang.module", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref",
                  "java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
                  "java.base/jdk.internal.util.jar", "jdk.management/com.sun.management.internal", "java.base/sun.nio.ch",
                  "java.base/java.io", "java.base/java.lang.reflect", "java.base/java.lang", "java.base/java.util", "java.base/java.nio"]
        exported = ["java.base/jdk.internal.misc", "java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry",
                    "java.rmi/sun.rmi.server", "java.sql/java.sql", "java.base/java.lang.ref", "jdk.unsupported/sun.misc"]
        command = [
            java, "-Xms384m", "-Xmx512m", "-Xss384k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
            "-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true", "-Dcassandra.ring_delay_ms=2000",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.superuser_setup_delay_ms=0", "-Dcassandra-foreground=yes",
            "-Dcassandra.consistent.rangemovement=false",
            f"-Dcassandra.initial_token={(number % 10 - 2) * 2**62}", "-Dlogback.configurationFile=logback.xml",
            *(f"--add-opens={module}=ALL-UNNAMED" for module in opened), *(f"--add-exports={module}=ALL-UNNAMED" for module in exported),
            f"-Dcassandra.config=file://{self.directory}/cassandra.yaml", f"-Dcassandra.storagedir={self.directory}",
            "-cp", f"{self.directory}:{jars}/*", "org.apache.cassandra.service.CassandraDaemon",
        ]
        self.process = Process(command, self.directory / "log", cwd=self.directory)
        wait_until("Cassandra listens", lambda: accepts(self.port, self.host), 180)

    def _settings(self, seed: "Cassandra") -> str:
        at = self.directory
        return f"""cluster_name: tollgate
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: '{seed.host}:{self.storage_port}'}}]}}]
listen_address: {self.host}
storage_port: {self.storage_port}
rpc_address: {self.host}
native_transport_port: {self.port}
authenticator: AllowAllAuthenticator
paxos_variant: v2
auto_bootstrap: false
data_file_directories: ['{at}/data']
commitlog_directory: '{at}/commitlog'
hints_directory: '{at}/hints'
saved_caches_directory: '{at}/caches'
cdc_raw_directory: '{at}/cdc'
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_segment_size: 4MiB
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
counter_cache_size: 0MiB
auto_snapshot: false
"""

    @property
    def url(self) -> str:
        return f"cassandra://{self.host}:{self.port}/limits"


class Postgres:
    """A server, or a standby that streams from one."""

    def __init__(self, primary: "Postgres | None" = None):
        need("initdb", "the Debian package postgresql")
        self.directory = process.folder("postgres")
        self.owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        if self.owner:
            os.chown(self.directory, self.owner.pw_uid, self.owner.pw_gid)
        self.port = free_port()
        if primary:
            self._run("pg_basebackup", "-h", "127.0.0.1", "-p", primary.port, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-D", self.data)
        else:
            self._run("initdb", "-A", "trust", "-U", "postgres", "-N", "-D", self.data)
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def _as_owner(self) -> dict:
        return {"user": self.owner.pw_uid, "group": self.owner.pw_gid} if self.owner else {}

    def _run(self, program: str, *arguments) -> subprocess.CompletedProcess:
        command = [find(program), *(str(each) for each in arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd=self.directory, **self._as_owner)

    def start(self) -> None:
        command = [find("postgres"), "-D", self.data, "-p", self.port, "-h", "127.0.0.1", "-k", "", "-c", "shared_buffers=16MB"]
        self.process = Process(command, process.folder("log") / "postgres", cwd=self.directory, **self._as_owner)

        def is_ready() -> bool:
            return subprocess.run([find("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]).returncode == 0

        wait_until("PostgreSQL is ready", is_ready)

    def stop(self) -> None:
        self.process.end("INT")

    def sql(self, text: str) -> str:
        return self._run("psql", "-h", "127.0.0.1", "-p", self.port, "-U", "postgres", "-tAc", text).stdout.strip()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


class Api:
    """The API behind the proxy: answers 200 and remembers what reached it, with the time.

    A body with a password that is `wrong` is answered with 401.
    """

    def __init__(self, status: int = 200):
        self.requests: list[tuple[float, str, str, dict, bytes]] = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                api.requests.append((time.monotonic(), self.command, self.path, headers, body))
                is_refused = b'"password":"wrong"' in body
                self.send_response(401 if is_refused else status)
                self.send_header("content-length", "2")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(b"no" if is_refused else b"ok")

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # a client that went away
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"
