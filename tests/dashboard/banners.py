"""The banner above every page: protection that is off, in shadow or partial, and memory that is full."""

from playwright.sync_api import Page, expect

from browser import case, open_page, visit
from node import Node
from process import free_port, wait_until

RULES = "rules: [{ id: login, match: POST /login, key: ip, limit: 5/m }]"
PAGES = ["", "rules", "keys", "decisions", "bans", "simulate", "changes", "health"]
FLOOD = 24_000
"""States of first-hit windows are wide: this many fill the least memory."""
BATCH = 1_000


def health(node: Node) -> dict:
    return node.admin("GET", "/healthz").body


def expect_banner(page: Page, *texts: str) -> None:
    """On every page the banner has these texts, is announced, and is in view."""
    banner = page.locator("#banner")
    expect(banner).to_have_attribute("role", "alert")
    for fragment in PAGES:
        visit(page, fragment)
        expect(page.get_by_role("main")).to_have_attribute("data-page", fragment or "overview")
        for text in texts:
            expect(banner).to_contain_text(text)
        expect(banner).to_be_in_viewport()


def flood(node: Node) -> None:
    """Invented users at their limit, until new ones find no room."""
    for first in range(0, FLOOD, BATCH):
        hits = [{"path": "/a", "user": f"u{first + n}", "cost": 5} for n in range(BATCH)]
        answer = node.ask("/v1/check/batch", hits)
        assert answer.status == 200, answer


@case
def a_banner_on_every_page_says_that_protection_is_off_or_in_shadow(browser):
    node = Node(f"rules_db: sqlite:tollgate.db\n{RULES}")
    page = open_page(browser, node, "health")
    expect(page.locator("#banner")).to_be_empty()
    assert "protection" not in health(node) or health(node)["protection"] == "on"
    for position, text in [("shadow", "Protection is in shadow"), ("off", "Protection is off")]:
        visit(page, "health")
        page.get_by_role("group", name="Enforcement").get_by_role("button", name=position).click()
        page.get_by_role("button", name=f"Switch to {position}").click()
        expect_banner(page, text, "The panic switch is")
        shown = health(node)
        assert (shown["enforce"], shown["protection"]) == (position, "off"), shown
    page.get_by_role("group", name="Enforcement").get_by_role("button", name="on", exact=True).click()
    page.get_by_role("button", name="Switch to on").click()
    expect(page.locator("#banner")).to_be_empty()
    assert health(node)["enforce"] == "on"


@case
def a_switch_of_another_caller_shows_on_an_open_page(browser):
    node = Node(f"rules_db: sqlite:tollgate.db\n{RULES}")
    page = open_page(browser, node, "rules")
    expect(page.locator("#banner")).to_be_empty()
    answer = node.admin("PUT", "/v1/enforce", {"enforce": "off"})
    assert answer.status == 200, answer
    expect(page.locator("#banner")).to_contain_text("Protection is off")
    page.locator("#banner").get_by_role("button", name="See health").click()
    expect(page.get_by_role("main")).to_have_attribute("data-page", "health")


@case
def a_banner_on_every_page_says_that_memory_is_full(browser):
    rule = "{ id: a, match: /a, key: user, limit: 5/h, algorithm: fixed-window, window: first-hit }"
    for mode, consequence in [
        ("aggregate", "new keys share counters"),
        ("open", "new keys pass without a limit"),
        ("closed", "new keys are denied"),
    ]:
        node = Node(f"memory: 1MiB\nmemory_full: {mode}\nrules: [{rule}]")
        page = open_page(browser, node, "rules")
        expect(page.locator("#banner")).to_be_empty()
        flood(node)
        shown = health(node)
        assert (shown["status"], shown["memory"]) == ("impaired", f"full: {consequence}"), shown
        text = f"{consequence[0].upper()}{consequence[1:]}: raise memory in the configuration."
        expect(page.locator("#banner")).to_contain_text(text)
        if mode == "aggregate":
            expect_banner(page, "Memory is full", text)
        else:
            expect(page.locator("#banner")).to_contain_text("Memory is full")


@case
def a_banner_says_that_a_store_or_a_database_does_not_answer(browser):
    node = Node(f"counters: redis://127.0.0.1:{free_port()}\nrules_db: none\n{RULES}")
    page = open_page(browser, node, "rules")
    node.check(method="POST", path="/login", ip="203.0.113.9")
    wait_until("the store counts as down", lambda: health(node).get("protection") == "off")
    expect_banner(page, "Protection is off", "on_store_error decides which requests pass")

    database = f"postgres://nobody@127.0.0.1:{free_port()}/none"
    node = Node(f"rules_db: {database}\non_rules_error: open\n{RULES}")
    shown = health(node)
    assert (shown["status"], shown["protection"]) == ("impaired", "partial"), shown
    expect_banner(open_page(browser, node, "rules"), "Protection is partial", "only those of the file are in force")


@case
def a_banner_says_that_no_rules_were_loaded(browser):
    database = f"postgres://nobody@127.0.0.1:{free_port()}/none"
    node = Node(f"rules_db: {database}\non_rules_error: open\nrules: []")
    shown = health(node)
    assert (shown["protection"], shown["rules"], shown["rules_db"]["source"]) == ("off", 0, "none"), shown
    page = open_page(browser, node, "health")
    expect_banner(page, "Protection is off", "No rules were loaded: everything passes.")
    expect(page.locator("#banner")).not_to_contain_text("on_store_error")
    expect(page.get_by_role("region", name="Counter store")).to_contain_text("in the memory")


@case
def two_troubles_are_two_lines(browser):
    rule = "{ id: a, match: /a, key: user, limit: 5/h, algorithm: fixed-window, window: first-hit }"
    node = Node(f"memory: 1MiB\nrules_db: sqlite:tollgate.db\nrules: [{rule}]")
    flood(node)
    assert node.admin("PUT", "/v1/enforce", {"enforce": "shadow"}).status == 200
    page = open_page(browser, node, "rules")
    lines = page.locator("#banner .banner")
    expect(lines).to_have_count(2)
    expect(lines.nth(0)).to_contain_text("Protection is in shadow")
    expect(lines.nth(1)).to_contain_text("Memory is full")
