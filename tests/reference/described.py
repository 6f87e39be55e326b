"""A node that uses everything, so that it has all metrics: a proxy, a central store, a rules database with its copy, a
queue."""

from functools import cache

from node import Node, call
from process import wait_until
from servers import Postgres, Redis

CONFIG = """
counters: {redis}
store_deadline: 10s
rules_db: {postgres}
upstreams: ["http://127.0.0.1:9"]
rules:
  - {{ id: login, match: POST /login, key: user, limit: 5/m, track: true, ban: {{ after: 3 }} }}
  - {{ id: jobs, match: POST /jobs, limit: 5/m, on_exceed: queue }}
"""


@cache
def node() -> Node:
    primary = Postgres()
    database = f"postgres://postgres@{primary.host}/postgres?replica={Postgres(primary).host}"
    return Node(CONFIG.format(redis=Redis().url, postgres=database))


def openapi() -> str:
    return call(node().admin_port, "GET", "/openapi.json").text


def metrics() -> str:
    """The page, once the node has its local copy of the database."""
    def page() -> str:
        return call(node().admin_port, "GET", "/metrics").text

    call(node().http, "POST", "/v1/check", '{ "method": "POST", "path": "/login", "user": "ann" }')
    late = ("tollgate_rules_copy_version", "tollgate_rules_db_lag_changes")
    wait_until("the local copy is written, and the lag is known", lambda: all(name in page() for name in late))
    return page()
