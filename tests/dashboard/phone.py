"""A screen of 360 px: what is beside it on a wide one is still to be seen."""

from playwright.sync_api import Page, expect

from access import ADMIN, node_with_tokens
from browser import case, open_page, visit
from node import Node

PHONE = {"width": 360, "height": 740}
TITLES = ["Overview", "Rules", "Keys", "Decisions", "Bans and allow", "Simulate", "Changes", "Health"]


def expect_inside(page: Page, element) -> None:
    expect(element).to_be_visible()
    box = element.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], box


@case
def all_pages_and_the_role_are_in_the_head_of_a_phone(browser):
    node = node_with_tokens()
    page = open_page(browser, node, "rules", viewport=PHONE)
    page.get_by_role("button", name="Not now").click()
    expect_inside(page, page.locator("#caller").get_by_role("button", name="Sign in"))
    page.locator("#caller").get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    expect(page.locator("#caller")).to_contain_text("ada · admin")
    expect_inside(page, page.locator("#caller").get_by_text("ada · admin"))
    expect_inside(page, page.get_by_role("button", name="Sign out"))
    for title in TITLES:
        link = page.get_by_role("navigation").get_by_role("link", name=title)
        expect_inside(page, link)
        link.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(link).to_have_attribute("aria-current", "page")


@case
def a_ban_on_a_phone_has_its_strikes_and_origin(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: login, key: ip, limit: 1/h, ban: { key: [ip], after: 3, within: 1h, for: 1h } }]")
    assert node.admin("POST", "/v1/bans", {"key": "ip:198.51.100.7", "for": "24h", "reason": "scraping"}).status == 201
    node.passed(9, ip="203.0.113.9")
    page = open_page(browser, node, "bans", viewport=PHONE)
    table = page.get_by_role("region", name="Bans in force")
    expect(table.get_by_role("row").filter(has_text="203.0.113.9")).to_contain_text("1 strike · automatic")
    expect(table.get_by_role("row").filter(has_text="198.51.100.7")).to_contain_text("manual")
    cut = table.evaluate("element => element.scrollHeight - element.clientHeight")
    assert cut <= 1, f"{cut} px of a short list are cut off"
    for number in range(40):
        assert node.admin("POST", "/v1/bans", {"key": f"ip:192.0.2.{number}", "for": "2h"}).status == 201
    visit(page, "health")
    visit(page, "bans")
    expect(page.get_by_text("42 bans", exact=True)).to_be_visible()
    assert table.bounding_box()["height"] < PHONE["height"], "a long list scrolls by itself"
