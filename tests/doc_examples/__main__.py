"""Runs the fenced examples of Markdown pages as a reader would, and compares what they print with what the page says.

    scripts/doc-examples [--verbose] [PAGE …]      README.md and the pages of docs/ by default

| block | what happens |
|---|---|
| `sh` | runs, in order, in one shell and one folder for each page. A `text` or `json` block right after it is its output |
| `console` | `$ command` lines run; what stands below each is its output. `…` stands for any text |
| `yaml` | saved, if its first line names a file (`# tollgate.yaml`); otherwise it must be a valid configuration |
| any, with `file=NAME` | saved under that name |
| any, with `not-run="reason"` | left alone, and counted |
| `rust` | left to `cargo test --doc` |

`<!-- doc-examples: redis postgres -->` in a page starts these servers for it.
"""

import os
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "harness")]

import compare  # noqa: E402
import links  # noqa: E402
import page as pages  # noqa: E402
import summary  # noqa: E402
from process import ROOT  # noqa: E402
from shell import TOLLGATE, Shell  # noqa: E402
from table import Missing  # noqa: E402


class Failed(Exception):
    pass


def expect(block: pages.Block, command: str, expected: str, printed: str) -> None:
    if not compare.matches(expected, printed):
        raise Failed(f"line {block.line}: {command}\n{compare.difference(expected, printed)}")


def run_page(page: pages.Page) -> tuple[int, int]:
    """The numbers of blocks that ran, and of those marked as not run."""
    shell = Shell(page.path.stem, page.servers)
    served = set(re.findall(r"tollgate serve -c (\S+)", page.path.read_text()))
    ran = marked = 0
    try:
        previous: tuple[str, str] | None = None  # the last sh block and its output
        for position, block in enumerate(page.blocks):
            output_of, previous = previous, None
            if block.not_run:
                marked += 1
                continue
            if block.file:
                shell.write(block.file, block.body, block.file in served)
            elif block.language == "sh":
                code, printed = shell.run(block.body)
                previous = block.body, printed
                following = page.blocks[position + 1].language if position + 1 < len(page.blocks) else ""
                if code != 0 and following not in ("text", "json"):
                    raise Failed(f"line {block.line}: exit code {code}\n{block.body}{printed}")
            elif block.language == "console":
                for step in pages.console_steps(block.body):
                    _, printed = shell.run(step.command)
                    expect(block, step.command, step.expected, printed)
            elif block.language in ("text", "json"):
                if output_of is None:
                    raise Failed(f"line {block.line}: output without a command before it, and not marked")
                if block.language == "json" and not compare.is_json(output_of[1]):
                    raise Failed(f"line {block.line}: {output_of[0]}printed no JSON:\n{output_of[1]}")
                expect(block, output_of[0], block.body, output_of[1])
            elif block.language == "yaml":
                shell.write(".checked.yaml", block.body, served=False)
                code, printed = shell.run("tollgate rules check .checked.yaml")
                if code != 0:
                    raise Failed(f"line {block.line}: not a valid configuration\n{printed}")
            elif block.language != "rust":
                raise Failed(f"line {block.line}: {block.language} cannot run: mark it with not-run=\"reason\"")
            ran += 1
    finally:
        shell.close()
    return ran, marked


def main(arguments: list[str]) -> int:
    verbose = "--verbose" in arguments
    names = [name for name in arguments if name != "--verbose"]
    paths = [Path(name).resolve() for name in names] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not TOLLGATE.exists():
        print(f"{TOLLGATE} is not there: run cargo build --release", file=sys.stderr)
        return 2
    total_ran = total_marked = failed = 0
    for problem in summary.unlisted():
        print(problem)
        failed += 1
    for path in paths if names else sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("[!t]*/**/*.md")):
        for target in links.broken(path):
            print(f"{os.path.relpath(path, ROOT)}: broken link {target}")
            failed += 1
    for path in paths:
        name, page = os.path.relpath(path, ROOT), pages.read(path)
        try:
            ran, marked = run_page(page)
        except Missing as missing:
            print(f"{name}: NOT RUN: {missing}")
            if log := os.environ.get("TOLLGATE_NOT_RUN"):
                with open(log, "a") as lines:
                    print(f"the examples of {name}: {missing}", file=lines)
            continue
        except (Failed, AssertionError) as problem:
            print(f"{name}: FAILED at {problem}")
            failed += 1
            continue
        total_ran += ran
        total_marked += marked
        print(f"{name}: {ran} blocks ran, {marked} are marked as not run")
        if verbose:
            for block in page.blocks:
                if block.not_run:
                    print(f"  line {block.line}: {block.not_run}")
    print(f"{total_ran} blocks ran, {total_marked} are marked as not run, {failed} failures")
    return 1 if failed else 0


sys.exit(main(sys.argv[1:]))
