"""Parts of a generated page."""


def generated(title: str, text: str) -> str:
    """A whole page."""
    return f"# {title}\n\n<!-- written by scripts/reference: do not edit -->\n\n{text}"


def cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
