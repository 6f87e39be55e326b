"""All keys of the configuration: a page, and a JSON Schema for editors."""

import json
import re

from markdown import generated, table
from settings import Key, Map, file

INTRODUCTION = """Every key that the configuration file may have, and what the parser accepts for it. What the keys do, with
examples: [configuration](../configuration.md), [the proxy](../proxy.md#settings). `compat` and
`envoy_config` are for [Envoy](../envoy.md).

The same as a JSON Schema, for completion in an editor: [tollgate.schema.json](tollgate.schema.json). Editors with the YAML
language server read it from the first line of the file: `# yaml-language-server: $schema=PATH`.
"""
TITLES = {"": "Settings", "rules[]": "Rules", "bans[]": "Bans"}


def _title(path: str) -> str:
    return TITLES.get(path, path.replace("[]", ""))


def _accepted(key: Key) -> str:
    if not key.map:
        return key.accepts
    anchor = re.sub(r"[^\w]", "", _title(key.map.path).lower())
    link = f"[a {'list of maps' if key.map.is_item else 'map'}](#{anchor})"
    alternative = re.sub(r",? or a map.*", "", key.accepts)
    return link if alternative.startswith(("a map", "a list")) or alternative == "text" else f"{alternative} or {link}"


def _sections(each: Map) -> list[str]:
    rows = [[f"`{key.name}`", _accepted(key), key.default] for key in each.keys]
    nested = [section for key in each.keys if key.map for section in _sections(key.map)]
    return [f"## {_title(each.path)}\n", table(["Key", "Accepts", "Default"], rows), *nested]


def page() -> str:
    return generated("All keys of the configuration", "\n".join([INTRODUCTION, *_sections(file())]))


def _plain(text: str) -> str:
    """Text without the marks of Markdown."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def _schema_of(key: Key) -> dict:
    text = f"{_plain(_accepted(key))}. Default: {_plain(key.default)}" if key.default else _plain(_accepted(key))
    schema: dict = {"description": text}
    if key.choices:
        schema["enum"] = key.choices
    if key.map and key.map.is_item:
        schema |= {"type": ["array", "null"], "items": _object(key.map)}
    elif key.map and _accepted(key).startswith("[a map"):
        schema |= _object(key.map) | {"type": ["object", "null"]}
    elif key.map:
        schema |= {"if": {"type": "object"}, "then": _object(key.map)}
    return schema


def _object(each: Map) -> dict:
    properties = {key.name: _schema_of(key) for key in each.keys}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def schema() -> str:
    """A JSON Schema: names, words that are choices, and descriptions. The parser checks the rest."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "The configuration file of Tollgate"}
    return json.dumps(head | _object(file()), indent=1) + "\n"
