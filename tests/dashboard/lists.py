"""Long lists, and a node that is gone for a while."""

from playwright.sync_api import expect

from browser import case, open_page
from node import Node

ROWS = 10_000


@case
def ten_thousand_rules_and_bans_scroll(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: []")
    rules = [{"id": f"rule-{number:05}", "match": f"/{number}", "limit": "5/m"} for number in range(ROWS)]
    answer = node.admin("POST", "/v1/rules/import", {"rules": rules})
    assert answer.status == 200, answer
    lines = "\n".join(f"ip:10.{number >> 16}.{number >> 8 & 255}.{number & 255} 1h" for number in range(ROWS))
    answer = node.admin("POST", "/v1/bans/import", lines, {"content-type": "text/plain"})
    assert answer.status == 200, answer
    page = open_page(browser, node, "rules")
    for fragment, name, last in [("rules", "Rules in force", "rule-09999"), ("bans", "Bans in force", "ip:10.0.9.99")]:
        page.goto(f"http://127.0.0.1:{node.admin_port}/#/{fragment}")
        table = page.get_by_role("region", name=name, exact=True)
        expect(table.locator("table")).to_have_attribute("aria-rowcount", str(ROWS + 1))
        assert table.locator("tbody tr").count() < 200, "only the rows in view are in the document"
        table.evaluate("element => { element.scrollTop = element.scrollHeight }")
        expect(table.locator("tbody tr:not(.space)").last).to_contain_text(last)
        table.focus()
        page.keyboard.press("Home")
        expect(table.locator("tbody tr:not(.space)").first).to_have_attribute("aria-rowindex", "2")
    page.get_by_label("Filter bans").fill("10.0.38.15")
    expect(page.get_by_text(f"11 of {ROWS:,} bans")).to_be_visible()


@case
def a_node_that_is_gone_makes_the_page_stale_not_blank(browser):
    node = Node("rules: [{ id: login, key: ip, limit: 5/h }]")
    page = open_page(browser, node, "rules")
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    node.kill()
    expect(page.locator("#heard")).to_contain_text("last heard")
    assert "stale" in page.locator("body").get_attribute("class")
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    node.start()
    expect(page.locator("#heard")).not_to_contain_text("last heard")
