"""The pages that docs/SUMMARY.md names: those of the book."""

import re
from pathlib import Path

from process import ROOT

DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def pages() -> list[Path]:
    return [(DOCS / link[1]).resolve() for link in LINK.findall(SUMMARY.read_text())]


def unlisted() -> list[str]:
    """Pages of docs/ that the book would not have."""
    missing = set(DOCS.rglob("*.md")) - set(pages()) - {SUMMARY}
    return [f"docs/SUMMARY.md does not name {page.relative_to(ROOT)}" for page in sorted(missing)]
