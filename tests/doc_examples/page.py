"""The fenced blocks of a Markdown page, and what each of them is for."""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(?P<language>[\w-]+)(?P<rest>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r'not-run="([^"]+)"')
FILE = re.compile(r"file=(\S+)")
YAML_NAME = re.compile(r"# ([\w./-]+\.ya?ml)$")
SERVERS = re.compile(r"<!-- doc-examples: (.*?) -->")


@dataclass
class Block:
    language: str
    body: str
    line: int
    not_run: str | None
    """The reason why the block cannot run here."""
    file: str | None
    """The file that the reader saves the block as."""


@dataclass
class Page:
    path: Path
    blocks: list[Block]
    servers: list[str]
    """What the page's examples need: redis, memcached, postgres, api."""


def read(path: Path) -> Page:
    text = path.read_text()
    blocks = []
    for found in FENCE.finditer(text):
        language, rest, body = found["language"], found["rest"], found["body"]
        reason, name = NOT_RUN.search(rest), FILE.search(rest)
        if language == "yaml" and not name:
            name = YAML_NAME.match(body.splitlines()[0])
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(language, body, line, reason and reason[1], name and name[1]))
    servers = SERVERS.search(text)
    return Page(path, blocks, servers[1].split() if servers else [])


@dataclass
class Step:
    """A command and what the page says that it prints (None: not said)."""

    command: str
    expected: str | None


def console_steps(body: str) -> list[Step]:
    """`$ command` lines, each with the output below it. A command goes on after a backslash at the end of a line."""
    steps: list[Step] = []
    goes_on = False
    for line in body.splitlines():
        if goes_on:
            steps[-1].command += "\n" + line
        elif line.startswith("$ "):
            steps.append(Step(line[2:], ""))
        elif not steps:
            raise ValueError(f"console output without a command: {line}")
        else:
            steps[-1].expected += line + "\n"
            continue
        goes_on = steps[-1].command.endswith("\\")
    return steps
