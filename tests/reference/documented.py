"""Defaults of settings, from the tables of the pages that describe them."""

import re
from functools import cache

from process import ROOT

# Tables by the heading above them, where the head of the table does not say which map it is about.
PREFIXES = {
    "Tracked keys": "rules[].track.",
    "Automatic bans": "rules[].ban.",
    "What a denied client is told": "rules[].deny.",
}


def _prefix(heading: str, head: list[str]) -> str | None:
    """The map that a table with defaults is about; `None` if it is about something else."""
    if of := re.match(r"Key of `(\w+)`", head[0]):
        return f"{of[1]}."
    if head[0] == "Option":
        return "rules[]." if "Algorithms" in head else PREFIXES.get(heading)
    return "" if head[0] == "Key" else None


@cache
def defaults() -> dict[str, str]:
    """Defaults by key, from the tables of the pages that describe them."""
    found: dict[str, str] = {}
    for name in ("configuration.md", "proxy.md"):
        heading, prefix, column = "", None, 0
        for line in (ROOT / "docs" / name).read_text().splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if line.startswith("#"):
                heading = line.lstrip("# ")
            if not cells:
                prefix = None
            elif "Default" in cells:
                prefix, column = _prefix(heading, cells), cells.index("Default")
            elif prefix is not None:
                keys = re.findall(r"`([\w.]+)`", cells[0])
                values = cells[column].split(", ")
                same = len(keys) > 1 and len(keys) == len(values)
                found |= {prefix + key: values[at] if same else cells[column] for at, key in enumerate(keys)}
    return found
