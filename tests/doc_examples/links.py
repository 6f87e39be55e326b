"""Links from one page to another: the file exists, and the heading does."""

import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _headings(path: Path) -> set[str]:
    """The anchors of a page, as forges make them."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(path: Path) -> list[str]:
    found = []
    for target in LINK.findall(BLOCK.sub("", path.read_text())):
        if re.match(r"\w+:", target):
            continue  # somewhere else
        name, _, heading = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        if not page.exists() or (heading and page.suffix == ".md" and heading not in _headings(page)):
            found.append(target)
    return found
