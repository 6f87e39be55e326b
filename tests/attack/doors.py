"""Doors: other sites' pages, strangers, and a second node in the same folder."""

from node import BINARY, Node, call
from process import Process, free_port
from report import attack

RULES = "rules_db: none\nmemory: 16MiB\nrules: [{ id: five, limit: 5/h, key: user }]\n"

JSON = {"domain": "a", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}


@attack("doors", "a page of another site calls the decision API and the admin API on loopback", "403, and nothing is charged")
def rebinding():
    node = Node(RULES)
    answers = [
        call(node.http, "POST", "/v1/check", {"user": "bob"}, {"host": "evil.example"}).status,
        call(node.http, "POST", "/v1/check", {"user": "bob"}, {"origin": "https://evil.example"}).status,
        call(node.http, "POST", "/json", JSON, {"origin": "https://evil.example", "content-type": "text/plain"}).status,
        call(node.http, "POST", "/json", JSON, {"host": "evil.example", "origin": "http://evil.example"}).status,
        call(node.admin_port, "GET", "/v1/rules", None, {"host": "evil.example"}).status,
        call(node.admin_port, "GET", "/v1/rules", None, {"sec-fetch-site": "cross-site"}).status,
    ]
    left = node.check(user="bob").body["remaining"]
    node.stop()
    return set(answers) == {403} and left == 4, f"{answers}, {left} of 5 left"


@attack("doors", "a second node in the same state_dir", "exits with 3, and names the first")
def shared_folder():
    node = Node(RULES)
    other = node.directory / "other.yaml"
    other.write_text(f"listen: {{ http: '127.0.0.1:{free_port()}', admin: '127.0.0.1:{free_port()}' }}\n{RULES}")
    second = Process([BINARY, "serve", "-c", other], node.directory / "second.log")
    code = second.child.wait(60)
    named = str(node.process.child.pid) in second.text()
    node.stop()
    return code == 3 and named, f"exit {code}, {'named' if named else 'not named'}"
