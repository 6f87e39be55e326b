"""The keys of the configuration, as its parser reports them.

The parser names the keys that it knows when it meets one that it does not know, and what it expects when it meets a
wrong value. So each map is probed with an unknown key, and each key with values of the wrong kind.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import process
from documented import defaults
from program import output

UNKNOWN = "zzzzzz"
# Values that are wrong in different ways; the second list is tried where the first says no more than a kind of value.
PROBES = ['"?"', "[[]]", "{}", "-1"]
BOUNDS = ["0", "0s", "99999999999999", "99999w"]
KINDS = {"a whole number", "a duration"}
# Keys whose value is a list of maps: the rest is found by probing.
LISTS = {"rules": "rules[]", "bans": "bans[]"}
# What makes a rule or a ban complete, so that only the probe is wrong.
COMPLETE = {
    "rules[]": {"id": "a", "limit": "5/m", "key": "ip"},
    "rules[].ban": {"after": "3"},
    "rules[].deny": {"body": "x", "content_type": "text/plain"},
    "proxy.health": {"path": "/"},
    "proxy.tls": {"cert": "a", "key": "b"},
}
INSTEAD_OF_LIMIT = {"limit", "limits", "limits_by", "time", "requests"}


@dataclass
class Key:
    path: str
    """Of the map that has it."""
    name: str
    accepts: str
    default: str
    map: "Map | None"
    """The keys of its value, or of the items of its value."""

    @property
    def choices(self) -> list[str]:
        """The words that it accepts, if it accepts nothing else."""
        found = re.fullmatch(r"(?:`[\w-]+`(?:, )?)+", self.accepts)
        return re.findall(r"`([\w-]+)`", self.accepts) if found else []


@dataclass
class Map:
    path: str
    """Such as `rules[].ban`; empty for the file itself."""
    keys: list[Key]

    @property
    def is_item(self) -> bool:
        return self.path.endswith("[]")


class Parser:
    def __init__(self):
        self.file: Path = process.folder("probe") / "probe.yaml"

    def problems(self, text: str) -> list[dict]:
        self.file.write_text(text)
        return json.loads(output("rules", "check", "--json", str(self.file))).get("problems", [])


def _map(path: str, name: str, value: str) -> str:
    entries = dict(COMPLETE.get(path, {}))
    if path == "rules[]" and name in INSTEAD_OF_LIMIT:
        del entries["limit"]
    return "{ " + ", ".join(f"{key}: {each}" for key, each in (entries | {name: value}).items()) + " }"


def _document(path: str, name: str, value: str) -> str:
    """A file in which the map at `path` has an entry."""
    text = _map(path, name, value)
    while path:
        path, _, name = path.rpartition(".")
        text = _map(path, name.removesuffix("[]"), f"[{text}]" if name.endswith("[]") else text)
    return text


def _keys(parser: Parser, path: str) -> list[str]:
    """The keys of the map at `path`; empty if it is not a map."""
    for problem in parser.problems(_document(path, UNKNOWN, "1")):
        if found := re.fullmatch(rf"unknown key '{UNKNOWN}': use (.*)", problem["message"]):
            if found[1].endswith("…"):
                raise AssertionError(f"the list of keys is cut off: {found[1]}")
            if problem["path"] == re.sub(r"\[\]", "[0]", path):
                return found[1].split(", ")
    return []


def _rejection(parser: Parser, path: str, key: str, probes: list[str]) -> str:
    """What the parser says that it wants, for the first probe that it rejects with such a message."""
    at = re.sub(r"\[\]", "[0]", f"{path}.{key}" if path else key)
    for probe in probes:
        for problem in parser.problems(_document(path, key, probe)):
            if problem["path"].startswith(at) and (wanted := _wanted(problem["message"])):
                return wanted
    return ""


def _accepts(parser: Parser, path: str, key: str) -> str:
    wanted = _rejection(parser, path, key, PROBES) or "text"
    if wanted == "a list":
        items = _rejection(parser, path, key, ['["?"]', "[[]]"])
        return f"a list: {items}" if items else wanted
    if wanted in KINDS:
        bounded = (_rejection(parser, path, key, [probe]) for probe in BOUNDS)
        return next((each for each in bounded if each not in KINDS | {""}), wanted)
    return wanted


def _wanted(message: str) -> str:
    """The part of a message that says what is accepted."""
    if "such as 50ms, 30s, 10m, 1h or 7d" in message:
        return "a duration"
    if "is not a valid path: begin it with /" in message:
        return "a path that begins with `/`"
    if "is not a valid address: write 127.0.0.1:8080" in message:
        return "an address such as `127.0.0.1:8080` or `[::1]:8080`, or `off`"
    if message.startswith("unknown attribute"):
        return "[an attribute](../configuration.md#keys)"
    if found := re.search(r"^unknown (?:value|store) '.*?': use (.*)$", message):
        return ", ".join(f"`{word}`" for word in re.split(r", | or ", found[1]))
    if found := re.search(r"^expected (.*?)(?:, found .*|: no scheme.*)?$", message):
        return found[1]
    if found := re.search(r": (?:write|use) (.*)$", message):
        return found[1]
    return ""


def _check_default(parser: Parser, path: str, key: str, default: str) -> None:
    """A default that is one value must be a value that the parser accepts."""
    if value := re.fullmatch(r"`([^`]+)`", default):
        at = re.sub(r"\[\]", "[0]", f"{path}.{key}" if path else key)
        wrong = [each for each in parser.problems(_document(path, key, value[1])) if each["path"].startswith(at)]
        if wrong and not re.search(r"\bis for\b|^only ", wrong[0]["message"]):
            raise AssertionError(f"the default of {at} in the docs is not valid: {wrong[0]['message']}")


def _map_at(parser: Parser, path: str) -> Map | None:
    names = _keys(parser, path)
    return Map(path, [_key(parser, path, name) for name in sorted(names)]) if names else None


def _key(parser: Parser, path: str, name: str) -> Key:
    whole = f"{path}.{name}" if path else name
    default = defaults().get(whole, "")
    _check_default(parser, path, name, default)
    return Key(path, name, _accepts(parser, path, name), default, _map_at(parser, LISTS.get(whole, whole)))


@cache
def file() -> Map:
    """The whole configuration file."""
    return _map_at(Parser(), "")
