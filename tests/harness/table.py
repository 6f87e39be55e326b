"""The table of checks: one line per check, PASS, FAIL or NOT RUN, under the row of the requirements it tries."""

import sys
import time
import traceback
from dataclasses import dataclass
from typing import Callable


class Missing(Exception):
    """Something the check needs cannot be had on this machine: NOT RUN, with the reason."""


@dataclass
class Check:
    row: str
    claim: str
    run: Callable[[], None]


CHECKS: list[Check] = []


def check(row: str, claim: str):
    """Registers a check of a requirement's row. It passes unless it raises."""

    def register(run: Callable[[], None]) -> Callable[[], None]:
        CHECKS.append(Check(row, claim, run))
        return run

    return register


def equal(actual, expected, what: str = "") -> None:
    if actual != expected:
        raise AssertionError(f"{what + ': ' if what else ''}expected {expected!r}, got {actual!r}")


def true(holds, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def run_all(rows: list[str], verbose: bool) -> int:
    """Runs the checks whose row starts with one of `rows` (all of them without any) and prints the table."""
    chosen = [each for each in CHECKS if not rows or any(each.row.startswith(row) for row in rows)]
    count = {"PASS": 0, "FAIL": 0, "NOT RUN": 0}
    print(f"{'row':<4} {'result':<8} check")
    for each in chosen:
        start = time.monotonic()
        result, reason = "PASS", ""
        try:
            each.run()
        except Missing as missing:
            result, reason = "NOT RUN", str(missing)
        except Exception as error:
            result, reason = "FAIL", f"{error}" or type(error).__name__
            if verbose or not isinstance(error, AssertionError):
                traceback.print_exc(file=sys.stderr)
        count[result] += 1
        took = f" ({time.monotonic() - start:.0f} s)" if verbose else ""
        print(f"{each.row:<4} {result:<8} {each.claim}{took}" + (f"\n{'':13} {reason}" if reason else ""), flush=True)
    print(f"\n{count['PASS']} passed, {count['FAIL']} failed, {count['NOT RUN']} not run")
    return 1 if count["FAIL"] else 0
