"""Screenshots for docs/dashboard: every page in both themes and at the width of a phone, with traffic."""

import random
import shutil
import subprocess
import threading

from playwright.sync_api import Page, expect, sync_playwright

from browser import CHROMIUM, open_page, visit
from node import Node, pause
from process import ROOT

FOLDER = ROOT / "docs/dashboard"
PAGES = {
    "overview": "", "rules": "rules", "rule": "rules/checkout", "keys": "keys?rule=login&key=ip%3A203.0.113.5",
    "decisions": "decisions", "bans": "bans", "simulate": "simulate", "changes": "changes", "health": "health",
}
SECONDS_OF_TRAFFIC = 45
MAX_PHONE_HEIGHT = 1_700
CONFIG = """rules_db: sqlite:tollgate.db
rules:
  - { id: search, match: GET /search, key: ip, limit: 60/m }
  - { id: login, match: POST /login, key: ip, limits: [5/m, 100/h], ban: { key: [ip], after: 120, within: 10m, for: 1h, max: 24h } }
  - { id: api, match: /api/**, key: user, limit: 100/m, mode: shadow }
allow: [ip:10.0.0.0/8]
"""


def send(node: Node, stop: threading.Event) -> None:
    chance = random.Random(7)
    while not stop.wait(0.1):
        for _ in range(chance.randint(8, 20)):
            node.check(method="GET", path="/search", ip=f"198.51.100.{min(250, int(chance.paretovariate(0.6)))}")
            if chance.random() < 0.3:
                node.check(method="POST", path="/login", ip=f"203.0.113.{chance.randint(1, 12)}")
            if chance.random() < 0.3:
                node.check(method="POST", path="/checkout", user=f"customer-{chance.randint(1, 5)}")
            node.check(method="GET", path="/api/items", user=f"partner-{chance.randint(1, 3)}")


def prepare() -> Node:
    node = Node(CONFIG)
    rule = {"id": "checkout", "match": "POST /checkout", "key": ["user"], "limits": ["10/m"]}
    node.admin("POST", "/v1/rules", rule)
    node.admin("POST", "/v1/bans", {"key": "ip:203.0.113.66", "for": "24h", "reason": "scraping"})
    node.admin("POST", "/v1/allow", {"key": "user:health-check", "note": "probes"})
    return node


def write() -> None:
    node = prepare()
    stop = threading.Event()
    sender = threading.Thread(target=send, args=(node, stop), daemon=True)
    sender.start()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        first = open_page(browser, node)
        pause(SECONDS_OF_TRAFFIC / 2)
        node.admin("PUT", "/v1/rules/checkout", {"match": "POST /checkout", "key": ["user"], "limits": ["20/m"]})
        pause(SECONDS_OF_TRAFFIC / 2)
        first.close()
        for mode in ["light", "dark", "phone"]:
            page = open_page(browser, node, color_scheme="dark" if mode == "dark" else "light")
            page.set_viewport_size({"width": 360, "height": 740} if mode == "phone" else {"width": 1280, "height": 860})
            for name, fragment in PAGES.items():
                visit(page, fragment)
                expect(page.get_by_text("Loading…")).to_have_count(0)
                pause(2.5)
                screenshot(page, name, mode)
        browser.close()
    stop.set()
    sender.join()
    shrink()


def screenshot(page: Page, name: str, mode: str) -> None:
    path = FOLDER / f"{name}-{mode}.png"
    if mode != "phone":
        page.screenshot(path=path)
        return
    # On a phone the results of a page are below its controls. A list without an end is cut.
    height = min(page.evaluate("document.documentElement.scrollHeight"), MAX_PHONE_HEIGHT)
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": 360, "height": height})


def shrink() -> None:
    """Few colours are enough: a third of the size."""
    if not shutil.which("pngquant"):
        print("pngquant is not installed: the screenshots are large")
        return
    files = sorted(str(file) for file in FOLDER.glob("*.png"))
    subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", "64", *files], check=True)
