"""All metrics, from the page of a node that has them all."""

import re

from described import metrics
from markdown import generated, table

INTRODUCTION = """Every metric with the help text that `/metrics` has. Which to watch, and what they mean in operation:
[operations](../operations.md#metrics). Values of `rule`, `server`, `upstream` and `version` come from the configuration,
never from clients; `status` has one of about fifty values.
"""
# Their values depend on the configuration, on requests, or on which ports are free.
OPEN_LABELS = {"listener", "rule", "server", "status", "upstream", "version", "le"}
SUFFIXES = {"counter": "_total", "info": "_info"}


def _labels(page: str, name: str) -> str:
    values: dict[str, list[str]] = {}
    for labels in re.findall(rf"^{name}(?:_bucket)?\{{([^}}]*)\}}", page, re.MULTILINE):
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            known = values.setdefault(label, [])
            if value not in known:
                known.append(value)
    values.pop("le", None)
    parts = [f"`{label}`" if label in OPEN_LABELS else f"`{label}`: `{' '.join(known)}`" for label, known in values.items()]
    return ", ".join(parts)


def page() -> str:
    text = metrics()
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    rows = []
    for base, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        name = base + SUFFIXES.get(kind, "")
        rows.append([f"`{name}`", kind, _labels(text, name), helps[base]])
    return generated("All metrics", f"{INTRODUCTION}\n{table(['Metric', 'Type', 'Labels', 'Meaning'], sorted(rows))}")
