"""The program that the reference describes."""

import os
import subprocess
from pathlib import Path

from process import ROOT

TOLLGATE = Path(os.environ.get("TOLLGATE", ROOT / "target/release/tollgate"))


def output(*arguments: str) -> str:
    """What a call prints, on both streams. Help texts are as wide as on a terminal of 100 columns."""
    environment = dict(os.environ, COLUMNS="100", NO_COLOR="1")
    done = subprocess.run(
        [str(TOLLGATE), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=60
    )
    return done.stdout
