"""Screenshots for docs/dashboard: every page in both themes and at the width of a phone. There are two nodes with a Redis
store and an upstream, minutes of requests, an attack on the login, and edits. Ten minutes."""

import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from browser import CHROMIUM, open_page, visit
from node import Node, pause
from process import ROOT, free_port
from servers import Api, Redis

FOLDER = ROOT / "docs/dashboard"
PAGES = {
    "overview": "", "rules": "rules", "rule": "rules/checkout", "keys": "keys", "key": "keys?rule=search&key=ip%3A198.51.100.7",
    "decisions": "decisions", "bans": "bans", "simulate": "simulate", "changes": "changes", "health": "health",
}
PLACE = Path("/tmp/tollgate")
"""Of the files of the nodes: their names are to be seen."""
MODES = ["light", "dark", "phone"]
SECONDS_OF_TRAFFIC = 330
EDIT_AFTER = 150
ATTACK_AFTER = 240
"""Late enough to be among the last five minutes in the last screenshot."""
ATTACK_SECONDS = 50
MAX_PHONE_HEIGHT = 1_700
CONFIG = """rules_db: sqlite:../tollgate.db
advertise: http://127.0.0.1:{admin}
counters: {store}
upstreams: [{upstream}]
proxy: {{ health: {{ path: / }} }}
rules:
  - {{ id: search, match: GET /search, key: ip, limit: 60/m }}
  - {{ id: login, match: POST /login, key: ip, limits: [5/m, 100/h], ban: {{ key: [ip], after: 120, within: 10m, for: 1h, max: 24h }} }}
  - {{ id: api, match: /api/**, key: user, limit: 100/m, mode: shadow }}
allow: [ip:10.0.0.0/8]
"""
CHECKOUT = {"match": "POST /checkout", "key": ["user"], "limits": ["20/m"]}


def send(node: Node, stop: threading.Event) -> None:
    chance = random.Random(7)
    start = time.monotonic()
    while not stop.wait(0.1):
        since = time.monotonic() - start
        swing = 1 + 0.4 * (since % 60 < 25)
        for _ in range(int(chance.randint(3, 6) * swing)):
            node.check(method="GET", path="/search", ip=f"198.51.100.{chance.randint(10, 250)}")
        if chance.random() < 0.25:
            node.check(method="GET", path="/search", ip=f"198.51.100.{chance.choice([7, 7, 8])}")
        if chance.random() < 0.3:
            node.check(method="POST", path="/login", ip=f"192.0.2.{chance.randint(1, 60)}")
        if chance.random() < 0.15:
            node.check(method="POST", path="/checkout", user=f"customer-{min(9, int(chance.paretovariate(0.8)))}")
        if chance.random() < 0.7:
            node.check(method="GET", path="/api/items", user=f"partner-{chance.randint(1, 3)}")
        if ATTACK_AFTER < since < ATTACK_AFTER + ATTACK_SECONDS:
            for _ in range(6):
                node.check(method="POST", path="/login", ip=f"203.0.113.{chance.randint(1, 12)}")


def prepare() -> Node:
    shutil.rmtree(PLACE, ignore_errors=True)
    store = Redis().url
    upstream = Api().url
    nodes = []
    for name in ["a", "b"]:
        (PLACE / name).mkdir(parents=True)
        port = free_port()
        config = CONFIG.format(admin=port, store=store, upstream=upstream)
        nodes.append(Node(config, directory=PLACE / name, admin_port=port))
    node = nodes[0]
    node.admin("PUT", "/v1/rules/checkout", CHECKOUT | {"limits": ["10/m"]})
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
        pause(EDIT_AFTER)
        node.admin("PUT", "/v1/rules/checkout", CHECKOUT)
        pause(SECONDS_OF_TRAFFIC - EDIT_AFTER)
        first.close()
        for mode in MODES:
            page = open_in(browser, node, mode)
            for name, fragment in PAGES.items():
                visit(page, fragment)
                expect(page.get_by_text("Loading…")).to_have_count(0)
                pause(2.5)
                screenshot(page, name, mode)
            page.close()
        for mode in MODES:
            page = open_in(browser, node, mode)
            ticket(page, node, mode)
            conflict(page, node, mode)
            page.close()
        node.admin("PUT", "/v1/enforce", {"enforce": "shadow"})
        for mode in MODES:
            page = open_in(browser, node, mode)
            expect(page.locator("#banner")).to_contain_text("Protection is in shadow")
            pause(5)
            screenshot(page, "banner", mode)
            page.close()
        browser.close()
    stop.set()
    sender.join()
    shutil.rmtree(PLACE, ignore_errors=True)
    shrink()


def open_in(browser: Browser, node: Node, mode: str) -> Page:
    viewport = {"width": 360, "height": 740} if mode == "phone" else {"width": 1280, "height": 860}
    return open_page(browser, node, color_scheme="dark" if mode == "dark" else "light", viewport=viewport)


def ticket(page: Page, node: Node, mode: str) -> None:
    """Why a login was denied."""
    client = {"method": "POST", "path": "/login", "ip": "192.0.2.99"}
    denied = next(answer for answer in iter(lambda: node.check(**client), None) if answer.status == 429)
    visit(page, "decisions")
    page.get_by_label("Ticket or request").fill(denied.body["ticket"])
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".explained")).to_contain_text("✗ Denied")
    screenshot(page, "ticket", mode)


def conflict(page: Page, node: Node, mode: str) -> None:
    """A draft of a rule that another person has changed."""
    visit(page, "rules/checkout")
    draft = page.get_by_label("Rule (YAML)")
    expect(draft).to_have_value("id: checkout\nmatch: POST /checkout\nkey: [user]\nlimits: [20/m]\n")
    node.admin("PUT", "/v1/rules/checkout", CHECKOUT | {"limits": ["30/m"]})
    draft.fill("id: checkout\nmatch: POST /checkout\nkey: [user]\nlimits: [20/m, 500/d]\n")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("region", name="Conflict")).to_be_visible()
    pause(2.5)
    screenshot(page, "conflict", mode)
    node.admin("PUT", "/v1/rules/checkout", CHECKOUT)


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
