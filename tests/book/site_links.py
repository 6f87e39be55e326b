"""Links of the built book: each leads to a file, and to an element of it where it names one."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list) -> None:
        values = dict(attributes)
        self.ids.add(values.get("id"))
        if link := values.get("href" if tag == "a" else "src" if tag == "img" else ""):
            self.links.add(link)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def broken(book: Path) -> list[str]:
    problems = []
    for path in sorted(book.rglob("*.html")):
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in sorted(_read(path).links):
            if re.match(r"\w+:", link):
                continue
            name, _, heading = unquote(link).partition("#")
            linked = (path.parent / name).resolve() if name else path
            if not linked.is_file() or (heading and linked.suffix == ".html" and heading not in _read(linked).ids):
                problems.append(f"{path.relative_to(book)}: broken link {link}")
    return problems
