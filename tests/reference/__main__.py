"""Writes docs/reference/ from a running Tollgate: keys of the configuration, help texts, metrics, calls of the HTTP APIs.

    scripts/reference             writes the pages
    scripts/reference --check     fails if a committed page differs
"""

import difflib
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "harness")]

import command_line  # noqa: E402
import configuration  # noqa: E402
import http_api  # noqa: E402
import metrics  # noqa: E402
import schema_examples  # noqa: E402
from process import ROOT  # noqa: E402
from program import TOLLGATE  # noqa: E402
from table import Missing  # noqa: E402

PAGES = {
    "configuration.md": configuration.page,
    "tollgate.schema.json": configuration.schema,
    "command-line.md": command_line.page,
    "metrics.md": metrics.page,
    "http-api.md": http_api.page,
}


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    if not TOLLGATE.exists():
        print(f"{TOLLGATE} is not there: run cargo build --release", file=sys.stderr)
        return 2
    different = 0
    for name, write in PAGES.items():
        path = ROOT / "docs/reference" / name
        try:
            text = write()
        except Missing as missing:
            not_run(f"docs/reference/{name}", missing)
            continue
        committed = path.read_text() if path.exists() else ""
        if text == committed:
            continue
        different += 1
        if check:
            lines = difflib.unified_diff(committed.splitlines(), text.splitlines(), "committed", "generated", lineterm="")
            print(f"docs/reference/{name} is out of date: run scripts/reference", *list(lines)[:40], sep="\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"docs/reference/{name} is written")
    wrong = wrong_examples() if check else []
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not different:
        print(f"{len(PAGES)} pages of docs/reference are up to date")
    return 1 if check and (different or wrong) else 0


def wrong_examples() -> list[str]:
    try:
        return schema_examples.problems()
    except Missing as missing:
        not_run("docs/reference/tollgate.schema.json, its examples", missing)
        return []


def not_run(what: str, missing: Missing) -> None:
    print(f"{what}: NOT RUN: {missing}")
    if log := os.environ.get("TOLLGATE_NOT_RUN"):
        with open(log, "a") as lines:
            print(f"{what}: {missing}", file=lines)


sys.exit(main(sys.argv[1:]))
