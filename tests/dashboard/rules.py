"""Rules: how busy each is, in the list and on its own page."""

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node

CONFIG = """rules_db: sqlite:tollgate.db
rules: [{ id: api, match: GET /api, key: user, limit: 5/h, mode: shadow }]
"""
CHECKOUT = {"id": "checkout", "match": "POST /checkout", "key": ["user"], "limits": ["10/h"]}


def busy_node() -> Node:
    node = Node(CONFIG)
    assert node.admin("POST", "/v1/rules", CHECKOUT).status == 201
    assert node.passed(25, method="GET", path="/api", user="ann") == 25
    assert node.passed(14, method="POST", path="/checkout", user="ann") == 10
    return node


@case
def a_rule_in_shadow_shows_what_it_would_limit(browser):
    node = busy_node()
    page = open_page(browser, node, "rules")
    table = page.get_by_role("region", name="Rules in force")
    api = table.get_by_role("row", name="api")
    checkout = table.get_by_role("row", name="checkout")
    expect(api.locator("td").nth(7)).to_have_text("○ 20")
    expect(checkout.locator("td").nth(6)).to_have_text("4")
    expect(checkout.locator("td").nth(7)).to_be_empty()
    strip = checkout.locator(".headroom")
    expect(strip).to_contain_text("9 in 10 up to 100")
    assert len(strip.get_attribute("title").splitlines()) == 10, strip.get_attribute("title")
    page.set_viewport_size({"width": 360, "height": 740})
    visit(page, "health")
    visit(page, "rules")
    expect(api.locator(".second-line")).to_contain_text("○ 20 would be limited")
    expect(api.locator(".second-line")).to_contain_text("file")
    expect(checkout.locator(".second-line")).to_contain_text("database")


@case
def the_page_of_a_rule_has_its_requests_beside_the_draft(browser):
    node = busy_node()
    page = open_page(browser, node, "rules/checkout")
    expect(page.get_by_role("heading", level=1)).to_have_text("checkout")
    expect(page).to_have_title("checkout · Rules · Tollgate")
    traffic = page.get_by_role("region", name="Traffic")
    expect(traffic.locator(".plot svg")).to_be_visible()
    expect(traffic).to_contain_text("4 of 14")
    expect(traffic.get_by_role("link", name="user:ann")).to_be_visible()
    before = traffic.locator(".plot path.area.denied").get_attribute("d")
    assert node.passed(6, method="POST", path="/checkout", user="ann") == 0
    expect(traffic).to_contain_text("10 of 20")
    assert traffic.locator(".plot path.area.denied").get_attribute("d") != before
    draft = page.get_by_label("Rule (YAML)")
    expect(draft).to_have_attribute("rows", "6")
    draft.fill("id: checkout\n" + "# a comment\n" * 12 + "key: [user]\nlimits: [10/h]\n")
    expect(draft).to_have_attribute("rows", "16")
    visit(page, "rules/api")
    expect(page.get_by_role("heading", level=1)).to_have_text("api")
    expect(page.get_by_role("region", name="Traffic")).to_contain_text("○ 20 would be")
    visit(page, "rules/new")
    expect(page.get_by_role("heading", level=1)).to_have_text("New rule")
    expect(page.get_by_role("region", name="Traffic")).to_have_count(0)
