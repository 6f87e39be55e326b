"""Tries every row of the requirements from outside, with real servers, and prints a table.

usage: scripts/requirements [--verbose] [ROW …]     such as: scripts/requirements C D3
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

import table

# Each module registers its checks when it is imported, in the order of the requirements.
import a_identities
import b_rules
import c_algorithms
import d_requests
import e_fleet
import f_docs

arguments = sys.argv[1:]
if "--help" in arguments or "-h" in arguments:
    print(__doc__.strip())
    sys.exit(0)
rows = [argument for argument in arguments if not argument.startswith("-")]
sys.exit(table.run_all(rows, verbose="--verbose" in arguments))
