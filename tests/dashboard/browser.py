"""The cases, and the browser that they share."""

import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Callable

import process
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright
from process import ROOT

from node import Node

CHROMIUM = shutil.which("chromium")
if not CHROMIUM:
    raise ImportError("there is no chromium")

SOON_MS = 30_000
"""What must happen soon, on a busy machine too."""
FAILURES = ROOT / "target/dashboard-failures"

CASES: list[tuple[str, Callable]] = []
expect.set_options(timeout=SOON_MS)


def case(run: Callable) -> Callable:
    """Registers a case: a function of the browser. Its name is what it shows."""
    CASES.append((run.__name__, run))
    return run


def open_page(browser: Browser, node: Node, fragment: str = "", token: str | None = None, **options) -> Page:
    """The dashboard of a node. An error in a script, or one that the browser reports, fails the case."""
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options).new_page()
    page.set_default_timeout(SOON_MS)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: "Content Security Policy" in message.text and page.errors.append(message.text))
    page.goto(f"http://127.0.0.1:{node.admin_port}/#/{fragment}")
    if token:
        sign_in(page, token)
    return page


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def visit(page: Page, fragment: str) -> None:
    page.evaluate("fragment => { location.hash = fragment }", f"#/{fragment}")


def run_all(words: list[str]) -> int:
    """Runs the cases in as many processes as there are processors: most of the time a case waits."""
    start = time.monotonic()
    shares = os.cpu_count() or 1
    command = [sys.executable, Path(__file__).parent, "--share"]
    workers = [subprocess.Popen([*command, f"{number}/{shares}", *words]) for number in range(shares)]
    codes = [worker.wait() for worker in workers]
    print(f"{'all' if not any(codes) else 'not all'} cases have passed, {time.monotonic() - start:.0f} s")
    return max(codes)


def run_share(number: int, shares: int, words: list[str]) -> int:
    """Every so many-th of the cases, in one browser."""
    process.use_share_of_ports(number, shares)
    chosen = [(name, run) for name, run in CASES if not words or any(word in name for word in words)][number::shares]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        passed = sum(run_case(browser, name, run) for name, run in chosen)
        browser.close()
    print(f"{passed} of {len(chosen)} cases have passed")
    return 0 if passed == len(chosen) else 1


def run_case(browser: Browser, name: str, run: Callable) -> bool:
    begun = time.monotonic()
    problem = ""
    try:
        run(browser)
        for page in (page for context in browser.contexts for page in context.pages):
            assert not page.errors, f"the page reports: {page.errors}"
    except (AssertionError, Error) as why:
        problem = "".join(traceback.format_exception(why, limit=-4))
        keep_screenshots(browser, name)
    for context in browser.contexts:
        context.close()
    seconds = time.monotonic() - begun
    # In one piece, as other workers print, too.
    print(f"{problem}{'FAIL' if problem else 'PASS'} {seconds:6.1f} s  {name.replace('_', ' ')}", flush=True)
    return not problem


def keep_screenshots(browser: Browser, name: str) -> None:
    FAILURES.mkdir(parents=True, exist_ok=True)
    for context in browser.contexts:
        for number, page in enumerate(context.pages):
            try:
                page.screenshot(path=FAILURES / f"{name}-{number}.png")
            except Error:
                pass
