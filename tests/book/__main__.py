"""Builds the book from docs/ and the pages outside of it that docs/SUMMARY.md names, and checks its links.

The pages link to each other as files of the repository. In the book, docs/ is the root, so the pages are copied to
target/book-source with their links rewritten.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "harness")]

import site_links  # noqa: E402
import summary  # noqa: E402
from process import ROOT  # noqa: E402
from source import Source  # noqa: E402

BUILT = ROOT / "target/book"


def main() -> int:
    staged = ROOT / "target/book-source"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(BUILT, ignore_errors=True)
    source = Source(staged / "src")
    problems = summary.unlisted() + source.copy()
    shutil.copy(ROOT / "docs/book.toml", staged / "book.toml")
    built = subprocess.run(["mdbook", "build", str(staged)], capture_output=True, text=True)
    if built.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", built.stderr):
        problems.append(built.stderr)
    else:
        problems += site_links.broken(BUILT)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", file=sys.stderr)
        return 1
    print(f"{len(source.pages)} pages: {BUILT.relative_to(ROOT)}/index.html")
    return 0


sys.exit(main())
