"""All help texts, as the program prints them."""

import re

from markdown import generated
from program import output

INTRODUCTION = """Every command with its help text, as `tollgate help COMMAND` prints it. Examples, exit codes and tokens:
[command line](../command-line.md).
"""


def _subcommands(text: str) -> list[str]:
    listed = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    names = re.findall(r"^  ([a-z][\w-]*)", listed[1], re.MULTILINE) if listed else []
    return [name for name in names if name != "help"]


def _sections(words: list[str]) -> list[str]:
    text = output(*words, "--help")
    title = " ".join(["tollgate", *words])
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    block = f'## {title}\n\n```text not-run="a help text"\n{lines}\n```\n'
    nested = [section for name in _subcommands(text) for section in _sections([*words, name])]
    return [block, *nested]


def page() -> str:
    sections = _sections([])
    return generated("All help texts", "\n".join([INTRODUCTION, *sections]))
