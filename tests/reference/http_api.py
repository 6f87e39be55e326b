"""All calls of both HTTP APIs, from the description that the server itself serves."""

import json

from described import openapi
from markdown import cell, generated, table

INTRODUCTION = """Every call of the decision API (`listen.http`) and the admin API (`listen.admin`), from `/openapi.json`.
Examples: [decision API](../decision-api.md), [admin API](../admin-api.md).

`role` is what a token needs once the server [requires tokens](../admin-api.md#access); each role includes the ones before
it: `read`, `operate`, `admin`. The decision API needs `check`.
"""
METHODS = ("get", "post", "put", "delete")


class Description:
    def __init__(self, text: str):
        self.root = json.loads(text)

    def resolve(self, value: dict) -> dict:
        while "$ref" in value:
            at = self.root
            for part in value["$ref"].removeprefix("#/").split("/"):
                at = at[part]
            value = at
        return value

    def kind(self, schema: dict) -> str:
        """The type of a value in a few words."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            return f"[{name}](#{name.lower()})"
        if "enum" in schema:
            return ", ".join(f"`{'null' if each is None else each}`" for each in schema["enum"])
        for several in ("oneOf", "anyOf", "allOf"):
            if several in schema:
                return " or ".join(self.kind(each) for each in schema[several])
        kind = schema.get("type", "any")
        if kind == "array":
            return f"list of {self.kind(schema.get('items', {}))}"
        return " or ".join(kind) if isinstance(kind, list) else kind


def _call(description: Description, method: str, path: str, call: dict) -> str:
    parts = [f"### {method.upper()} {path}\n", f"{call['summary']}."]
    if role := call.get("x-role"):
        parts[-1] += f" Role: `{role}`."
    parts[-1] += "\n"
    parameters = [description.resolve(each) for each in call.get("parameters", [])]
    if parameters:
        rows = [
            [f"`{each['name']}`", each["in"], description.kind(each.get("schema", {})), each.get("description", "")]
            for each in parameters
        ]
        parts.append(table(["Parameter", "In", "Type", "Meaning"], rows))
    if body := call.get("requestBody"):
        kinds = [
            f"`{kind}`: {description.kind(content.get('schema', {}))}"
            for kind, content in description.resolve(body).get("content", {}).items()
        ]
        parts.append("Body: " + "; ".join(kinds) + "\n")
    rows = []
    for status, answer in call["responses"].items():
        answer = description.resolve(answer)
        contents = answer.get("content", {}).values()
        kinds = {description.kind(content.get("schema", {})) for content in contents}
        rows.append([status, answer["description"], "; ".join(sorted(kinds))])
    parts.append(table(["Status", "Means", "Body"], rows))
    return "\n".join(parts)


def _schema(description: Description, name: str, schema: dict) -> str:
    parts = [f"### {name}\n"]
    if text := schema.get("description"):
        parts.append(cell(text) + "\n")
    properties = schema.get("properties", {})
    if not properties:
        parts.append(f"Type: {description.kind(schema)}\n")
        return "\n".join(parts)
    rows = [[f"`{field}`", description.kind(each), each.get("description", "")] for field, each in properties.items()]
    parts.append(table(["Field", "Type", "Meaning"], rows))
    return "\n".join(parts)


def page() -> str:
    description = Description(openapi())
    sections = [INTRODUCTION]
    for tag in sorted(description.root["tags"], key=lambda tag: tag["name"] != "decisions"):
        calls = [
            _call(description, method, path, operations[method])
            for path, operations in description.root["paths"].items()
            for method in METHODS
            if method in operations and operations[method]["tags"][0] == tag["name"]
        ]
        sections += [f"## {tag['name'].capitalize()}\n", *calls]
    sections.append("## Types\n")
    sections += [_schema(description, *each) for each in description.root["components"]["schemas"].items()]
    return generated("All calls of the HTTP APIs", "\n".join(sections))
