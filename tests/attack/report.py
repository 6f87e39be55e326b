"""The table of attacks: what is done, the bound, what was measured, and whether it holds."""

import sys
import time
import traceback
from dataclasses import dataclass
from typing import Callable


@dataclass
class Attack:
    part: str
    what: str
    bound: str
    run: Callable[[], tuple[bool, str]]


ATTACKS: list[Attack] = []


def attack(part: str, what: str, bound: str):
    """Registers an attack; it returns whether the bound held, and what was measured."""

    def register(run):
        ATTACKS.append(Attack(part, what, bound, run))
        return run

    return register


def run_all(parts: list[str]) -> int:
    known = {each.part for each in ATTACKS}
    if unknown := set(parts) - known:
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    chosen = [each for each in ATTACKS if not parts or each.part in parts]
    failed = 0
    print("| Attack | Bound | Measured | |\n|---|---|---|---|")
    for each in chosen:
        start = time.monotonic()
        try:
            holds, measured = each.run()
        except Exception as error:
            holds, measured = False, f"{type(error).__name__}: {error}"
            if not isinstance(error, AssertionError):
                traceback.print_exc(file=sys.stderr)
        failed += not holds
        print(f"| {each.what} | {each.bound} | {measured} | {'holds' if holds else 'BROKEN'} |", flush=True)
        print(f"{each.part}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    print(f"\n{len(chosen) - failed} of {len(chosen)} bounds hold", flush=True)
    return 1 if failed else 0
