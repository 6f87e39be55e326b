"""Attacks a node from outside, and prints each attack with its bound and what was measured.

usage: scripts/attack [PART …]     such as: scripts/attack floods slow
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

import report

# Each module registers its attacks when it is imported.
import floods
import bans
import slow
import listeners
import work
import upstreams
import identity
import doors
import crash

arguments = sys.argv[1:]
if "--help" in arguments or "-h" in arguments:
    print(__doc__.strip())
    sys.exit(0)
sys.exit(report.run_all(arguments))
