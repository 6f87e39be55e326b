"""The pages of the book: those that docs/SUMMARY.md names, copied so that docs/ is the root."""

import os
import re
import shutil
from pathlib import Path

from process import ROOT
from summary import DOCS, LINK, SUMMARY, pages

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Files that pages link to and that are not pages.
COPIED = {".svg", ".png", ".json", ".yaml", ".cfg", ".conf", ".py", ".mjs", ".go", ".rs", ".Caddyfile"}


def staged_path(path: Path) -> Path:
    """Where a file of the repository is in the book."""
    if path == ROOT / "README.md":
        path = DOCS / "README.md"
    if path.name == "README.md":
        path = path.with_name("index.md")  # as mdBook names it: links to it must, too
    return path.relative_to(DOCS) if path.is_relative_to(DOCS) else path.relative_to(ROOT)


def _shown(fence: str) -> str:
    """A block as readers see it: its first line without the words for the tests, and above it the file's name."""
    head, _, rest = fence.partition("\n")
    language, _, words = head.partition(" ")
    name = re.search(r"file=(\S+)", words)
    return (f"`{name[1]}`:\n\n" if name else "") + f"{language}\n{rest}"


class Source:
    def __init__(self, target: Path):
        self.target = target
        self.pages = pages()

    def copy(self) -> list[str]:
        problems = []
        for page in [SUMMARY, *self.pages]:
            target = self.target / staged_path(page)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self._rewritten(page, problems))
        return problems

    def _rewritten(self, page: Path, problems: list[str]) -> str:
        """The page with links as they are in the book. Links in fenced blocks stay."""
        text = page.read_text()
        parts = []
        end = 0
        for fence in FENCE.finditer(text):
            parts += [self._with_links(page, text[end:fence.start()], problems), _shown(fence[0])]
            end = fence.end()
        return "".join([*parts, self._with_links(page, text[end:], problems)])

    def _with_links(self, page: Path, text: str, problems: list[str]) -> str:
        def rewrite(found: re.Match) -> str:
            link = found[2]
            if re.match(r"\w+:", link) or link.startswith("#"):
                return found[0]
            name, mark, heading = link.partition("#")
            linked = (page.parent / name).resolve()
            if linked.suffix == ".md" and linked not in self.pages and linked != ROOT / "README.md":
                problems.append(f"{page.relative_to(ROOT)}: {link} is not in the book: name it in docs/SUMMARY.md")
            if linked.is_dir() or not linked.is_relative_to(ROOT):
                problems.append(f"{page.relative_to(ROOT)}: {link} is not a file")
                return found[0]
            self._copy_file(linked)
            at = os.path.relpath(staged_path(linked), staged_path(page).parent)
            return f"{found[1]}{at}{mark}{heading}{found[3]}"

        return LINK.sub(rewrite, text)

    def _copy_file(self, linked: Path) -> None:
        if linked.suffix in COPIED and linked.exists():
            target = self.target / staged_path(linked)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(linked, target)
