"""A. Who is being limited."""

import base64
import hashlib
import hmac
import json
import secrets

import process
from node import Node, call
from servers import Api, Redis
from table import check, equal, true


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(secret: bytes, claims: dict) -> str:
    head = base64url(json.dumps({"alg": "HS256", "kid": "main"}).encode())
    signed = f"{head}.{base64url(json.dumps(claims).encode())}"
    return f"{signed}.{base64url(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


@check("A1", "ip, mac, user, email, api_key, header, cookie, query, JWT claim and attribute tell users apart; a forged JWT does not")
def every_kind_of_identity() -> None:
    secret = secrets.token_bytes(32)
    directory = process.folder("node")
    keys = {"keys": [{"kty": "oct", "kid": "main", "alg": "HS256", "k": base64url(secret)}]}
    (directory / "keys.json").write_text(json.dumps(keys))
    kinds = ["ip", "mac", "user", "email", "api_key", "header:x-device", "cookie:sid", "query:t", "jwt:tenant", "attr:seat"]
    rules = "\n".join(f"  - {{ id: k{n}, match: '/k{n}', key: '{kind}', limit: 3/h }}" for n, kind in enumerate(kinds))
    node = Node(f"rules_db: none\njwt: {{ keys_file: keys.json }}\nrules:\n{rules}\n", directory=directory)

    def request(kind: str, who: int) -> dict:
        match kind:
            case "ip":
                return {"ip": f"203.0.113.{who}"}
            case "mac":
                return {"mac": f"02:00:00:00:00:0{who}"}
            case "header:x-device":
                return {"headers": {"X-Device": f"d{who}"}}
            case "cookie:sid":
                return {"headers": {"cookie": f"other=1; sid=s{who}"}}
            case "query:t":
                return {}
            case "jwt:tenant":
                return {"headers": {"authorization": "Bearer " + token(secret, {"tenant": f"t{who}"})}}
            case "attr:seat":
                return {"attributes": {"seat": f"{who}"}}
        return {kind: f"someone-{who}@example.org"}

    tenant = kinds.index("jwt:tenant")
    forged = {"authorization": "Bearer " + token(secrets.token_bytes(32), {"tenant": "t1"})}
    equal(node.check(path=f"/k{tenant}", headers=forged).body["reason"], "no_rule", "a forged token names nobody")
    for n, kind in enumerate(kinds):
        for who in (1, 2):
            path = f"/k{n}?t={who}" if kind == "query:t" else f"/k{n}"
            equal(node.passed(4, path=path, **request(kind, who)), 3, f"{kind}, client {who}")


@check("A1", "IP + user: one café, many users; json and form fields of a proxied login")
def combinations_and_bodies() -> None:
    api = Api()
    node = Node(f"""rules_db: none
upstreams: [{api.url}]
rules:
  - {{ id: pair, match: /pair, key: [ip, user], limit: 2/h }}
  - {{ id: json, match: POST /json-login, key: 'json:account.email', limit: 2/h }}
  - {{ id: form, match: POST /form-login, key: 'form:email', limit: 2/h }}
""")
    for user in range(5):
        equal(node.passed(3, path="/pair", ip="198.51.100.1", user=f"u{user}"), 2, "users behind one address")
    for host in range(5):
        equal(node.passed(3, path="/pair", ip=f"198.51.100.{100 + host}", user="u0"), 2, "one user at several addresses")
    for who in ("ann", "bob"):
        bodies = {
            "/json-login": ("application/json", json.dumps({"x": [1], "account": {"email": f"{who}@example.org"}})),
            "/form-login": ("application/x-www-form-urlencoded", f"a=b&email={who}%40example.org"),
        }
        for path, (kind, body) in bodies.items():
            passed = [call(node.proxy, "POST", path, body, {"content-type": kind}).status for _ in range(3)]
            equal(passed, [200, 200, 429], f"{path} by {who}")


@check("A2", "the address comes from trusted proxies only, walked right to left; a spoofed entry is never the key")
def trusted_proxies() -> None:
    api = Api()
    node = Node(f"""rules_db: none
upstreams: [{api.url}]
trusted_proxies: [127.0.0.9/32, 10.0.0.0/8]
rules: [{{ id: each, match: '/**', key: ip, limit: 4/h }}]
""")

    def ask(source: str, forwarded: str) -> int:
        return call(node.proxy, "GET", "/", headers={"X-Forwarded-For": forwarded}, source=source).status

    spoofed = [ask("127.0.0.9", f"192.0.2.{n}, 203.0.113.50, 10.1.2.3") for n in range(6)]
    equal(spoofed, [200] * 4 + [429] * 2, "an entry left of the client's own")
    equal(ask("127.0.0.9", "203.0.113.51"), 200, "another client")
    direct = [ask("127.0.0.7", f"192.0.2.{n}") for n in range(6)]
    equal(direct, [200] * 4 + [429] * 2, "a client that is no trusted proxy")


@check("A2", "IPv6 by /64, ::ffff:a.b.c.d as a.b.c.d, MAC and email in one spelling")
def canonical_identities() -> None:
    node = Node("""rules_db: none
rules:
  - { id: ip, match: /ip, key: ip, limit: 3/h }
  - { id: mac, match: /mac, key: mac, limit: 2/h }
  - { id: email, match: /email, key: email, limit: 2/h }
""")
    same = ["2001:db8:7:7::1", "2001:db8:7:7:ffff::2", "2001:DB8:7:7::3", "2001:db8:7:7::4"]
    equal([node.check(path="/ip", ip=ip).status for ip in same], [200, 200, 200, 429], "one /64")
    equal(node.check(path="/ip", ip="2001:db8:7:8::1").status, 200, "the next /64")
    mapped = ["192.0.2.77", "::ffff:192.0.2.77", "::ffff:c000:24d", "192.0.2.77"]
    equal([node.check(path="/ip", ip=ip).status for ip in mapped], [200, 200, 200, 429], "mapped addresses")
    macs = ["AA-BB-CC-00-11-22", "aa:bb:cc:00:11:22", "AA:bb:CC:00:11:22"]
    equal([node.check(path="/mac", mac=mac).status for mac in macs], [200, 200, 429], "spellings of a MAC")
    emails = [" Ann@Example.ORG ", "ann@example.org", "ANN@EXAMPLE.ORG"]
    equal([node.check(path="/email", email=email).status for email in emails], [200, 200, 429], "spellings of an email")


@check("A3", "not more than 5 password resets an hour; url_shorten by 192.168.0.1")
def events_and_features() -> None:
    node = Node("""rules_db: none
rules:
  - { id: reset, match: POST /password/reset, key: user, limit: 5/h }
  - { id: events, key: ['attr:event', ip], limit: 7/d }
""")
    equal(node.passed(6, method="POST", path="/password/reset", user="7"), 5, "resets")
    shorten = {"attributes": {"event": "url_shorten"}, "ip": "192.168.0.1"}
    equal(node.passed(9, **shorten), 7, "url_shorten by 192.168.0.1")
    equal(node.passed(1, attributes={"event": "url_expand"}, ip="192.168.0.1"), 1, "another event")
    equal(node.passed(1, attributes={"event": "url_shorten"}, ip="192.168.0.2"), 1, "another feature")


TRACKED = "rules: [{ id: login, match: POST /login, key: user, limit: 12/h, track: true }]\n"


@check("A4", "tries, denials, last seen and the latest 16 times of a tracked key; a restart keeps them")
def tracking_on_one_node() -> None:
    node = Node("rules_db: none\n" + TRACKED)
    node.passed(20, method="POST", path="/login", user="9")
    before = node.key("login", "user:9")
    equal((before["tries"], before["denials"], len(before["latest"])), (20, 8, 16))
    equal(before["latest"], sorted(before["latest"], reverse=True), "latest times, newest first")
    equal(before["last_seen"], before["latest"][0])
    node.restart()
    after = node.key("login", "user:9")
    equal({name: after[name] for name in ("tries", "denials", "last_seen", "latest")}, {name: before[name] for name in ("tries", "denials", "last_seen", "latest")})


@check("A4", "three nodes on Redis tell the same numbers of a tracked key, and still do after all were restarted")
def tracking_in_a_fleet() -> None:
    redis = Redis()
    nodes = [Node(f"rules_db: none\ncounters: {redis.url}\n{TRACKED}") for _ in range(3)]
    for number in range(21):
        nodes[number % 3].check(method="POST", path="/login", user="9")

    def told(node: Node) -> tuple:
        key = node.key("login", "user:9")
        return key["tries"], key["denials"], len(key["latest"])

    def agreed() -> bool:
        return [told(node) for node in nodes] == [(21, 9, 16)] * 3

    process.wait_until("all nodes tell 21 tries and 9 denials", agreed, 10)
    for node in nodes:
        node.stop()
    for node in nodes:
        node.start()
    true(agreed(), f"after a restart: {[told(node) for node in nodes]}")
