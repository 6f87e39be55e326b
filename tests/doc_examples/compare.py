"""Whether a command printed what a page says. `…` in a page stands for any text."""

import difflib
import json
import re

# What differs from run to run, and by what it is replaced on both sides.
VOLATILE = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r'"[0-9a-f]{8}(-\d+){2,3}"'), '"ID"'),
    (re.compile(r'((?:age_ms|age_seconds|_bytes)":) ?\d+'), r"\1 N"),
    (re.compile(r'(_ms":) ?[1-9]\d*'), r"\1 N"),
    (re.compile(r";t=\d+"), ";t=N"),
    (re.compile(r"(retry-after: )\d+", re.IGNORECASE), r"\1N"),
    (re.compile(r"\b(in|after) \d+(ms|s|m|h)\b"), r"\1 DURATION"),
    (re.compile(r"\bprocess \d+"), "process N"),
]
# Headers that a page may leave out.
OPTIONAL = re.compile(r"^(date|content-length|connection|x-content-type-options|cache-control): .*$", re.IGNORECASE)


def normal(text: str) -> list[str]:
    lines = (line.rstrip() for line in text.splitlines())
    lines = [line for line in lines if line]
    for pattern, replacement in VOLATILE:
        lines = [pattern.sub(replacement, line) for line in lines]
    return lines


def matches(expected: str, printed: str) -> bool:
    said, seen = normal(expected), normal(printed)
    if not any(OPTIONAL.match(line) for line in said):
        seen = [line for line in seen if not OPTIONAL.match(line)]
    # Line breaks do not count: a page may wrap a long line.
    squeeze = lambda lines: re.sub(r"\s+", "", "\n".join(lines))
    pattern = ".*?".join(re.escape(part) for part in squeeze(said).split("…"))
    return re.fullmatch(pattern, squeeze(seen), re.DOTALL) is not None


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def difference(expected: str, printed: str) -> str:
    return "\n".join(difflib.unified_diff(normal(expected), normal(printed), "the page", "printed", lineterm=""))
