"""The dashboard in Chromium, against real nodes.

usage: scripts/dashboard [WORD …]           the cases whose names contain one of the words
       scripts/dashboard --screenshots      writes docs/dashboard again
"""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/harness"))
sys.path.insert(0, str(ROOT / "target/servers/playwright"))

arguments = sys.argv[1:]
if "--help" in arguments or "-h" in arguments:
    print(__doc__.strip())
    sys.exit(0)

try:
    import browser
except ImportError as missing:
    print(f"NOT RUN: {missing}: scripts/servers installs it")
    if log := os.environ.get("TOLLGATE_NOT_RUN"):
        with open(log, "a") as file:
            file.write("the dashboard: Playwright or Chromium is not installed\n")
    sys.exit(0)

if arguments == ["--screenshots"]:
    import screenshots

    screenshots.write()
    sys.exit(0)

# Each module registers its cases when it is imported.
import access
import accessibility
import banners
import changes
import editing
import fleet
import health
import keyboard
import keys
import live
import lists
import phone
import prefix
import rules
import simulation

if arguments[:1] == ["--share"]: # of run_all
    number, shares = map(int, arguments[1].split("/"))
    sys.exit(browser.run_share(number, shares, arguments[2:]))
sys.exit(browser.run_all(arguments))
