"""Long lists, and a node that is gone for a while."""

from playwright.sync_api import Locator, Page, expect

from browser import case, open_page, visit
from node import Node
from process import wait_until

ROWS = 10_000
PAGES_DOWN = 6


def page_through(page: Page, table: Locator) -> None:
    """With the focus in a row: the list goes on scrolling when that row is out of view, and so out of the document."""
    control = table.locator("tbody tr:not(.space) :is(a, button)").first
    control.focus()
    seen = 0
    for _ in range(PAGES_DOWN):
        page.keyboard.press("PageDown")
        wait_until("the next page is shown", lambda: table.evaluate("element => element.scrollTop") > seen)
        seen = table.evaluate("element => element.scrollTop")
    first = int(table.locator("tbody tr:not(.space)").first.get_attribute("aria-rowindex"))
    assert first > 20, f"row {first} is the first"
    expect(table).to_be_focused()
    page.keyboard.press("Home")
    expect(table.locator("tbody tr:not(.space)").first).to_have_attribute("aria-rowindex", "2")


def sort_both_ways(heading: Locator, table: Locator, last: str) -> None:
    for direction in ["ascending", "descending"]:
        heading.get_by_role("button").click()
        expect(heading).to_have_attribute("aria-sort", direction)
    expect(table.locator("tbody tr:not(.space)").first).to_contain_text(last)


@case
def the_focus_follows_its_row_while_the_list_is_loaded_again(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: []")
    for number in (10, 20, 30):
        assert node.admin("POST", "/v1/bans", {"key": f"ip:10.0.0.{number}", "for": f"{number}m"}).status == 201
    page = open_page(browser, node, "bans")
    table = page.get_by_role("region", name="Bans in force")
    lift = page.get_by_role("button", name="Lift the ban of ip:10.0.0.20")
    lift.focus()
    assert node.admin("POST", "/v1/bans", {"key": "ip:10.0.0.5", "for": "5m"}).status == 201
    expect(table.get_by_role("row", name="ip:10.0.0.5")).to_be_visible()
    expect(lift).to_be_focused()
    expect(table.locator("tbody tr:not(.space) .key")).to_have_text([f"ip:10.0.0.{number}" for number in (5, 10, 20, 30)])


@case
def addresses_are_in_the_order_of_their_numbers(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: []")
    keys = ["ip:9.0.0.1", "ip:10.0.0.2", "ip:10.0.0.10", "ip:2001:db8::2", "ip:2001:db8::10", "ip:2001:db8:1::", "user:ann"]
    lines = "\n".join(f"{key} 1h" for key in reversed(keys))
    assert node.admin("POST", "/v1/bans/import", lines, {"content-type": "text/plain"}).status == 200
    page = open_page(browser, node, "bans")
    table = page.get_by_role("region", name="Bans in force")
    shown = table.locator("tbody tr:not(.space) .key")
    expect(table.get_by_role("columnheader", name="Time left")).to_have_attribute("aria-sort", "ascending")
    expect(shown).to_have_count(len(keys))
    table.get_by_role("button", name="Key").click()
    # As the node writes them: an address may have its length.
    texts = [text.split("/")[0] for text in shown.all_inner_texts()]
    assert texts == keys, texts


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
    lists = [("rules", "Rules in force", "Rule", "rule-09999"), ("bans", "Bans in force", "Key", "ip:10.0.39.15")]
    for fragment, name, column, last in lists:
        page.goto(f"http://127.0.0.1:{node.admin_port}/#/{fragment}")
        table = page.get_by_role("region", name=name, exact=True)
        expect(table.locator("table")).to_have_attribute("aria-rowcount", str(ROWS + 1))
        assert table.locator("tbody tr").count() < 200, "only the rows in view are in the document"
        table.evaluate("element => { element.scrollTop = element.scrollHeight }")
        expect(table.locator("tbody tr:not(.space)").last).to_contain_text(last)
        table.focus()
        page.keyboard.press("Home")
        expect(table.locator("tbody tr:not(.space)").first).to_have_attribute("aria-rowindex", "2")
        page_through(page, table)
        sort_both_ways(table.get_by_role("columnheader", name=column, exact=True), table, last)
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


@case
def a_node_that_is_gone_is_not_called_protecting_after_a_change_of_the_page(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: login, key: ip, limit: 5/h }]")
    page = open_page(browser, node)
    assert node.passed(9, ip="203.0.113.9") == 5
    expect(page.locator("#sentence")).to_contain_text("Protecting")
    expect(page.locator(".plot svg")).to_be_visible()
    expect(page.get_by_role("region", name="Most limited keys")).to_contain_text("203.0.113.9")
    visit(page, "rules")
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    node.kill()
    visit(page, "overview")
    sentence = page.locator("#sentence")
    expect(sentence).to_contain_text("The node does not answer, last heard")
    expect(page.locator(".plot svg")).to_be_visible()
    expect(page.get_by_role("region", name="Most limited keys")).to_contain_text("203.0.113.9")
    expect(page.get_by_text("Top keys: last heard")).to_be_visible()
    visit(page, "rules")
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    expect(page.get_by_text("Rules: last heard")).to_be_visible()
    visit(page, "changes")
    expect(page.get_by_text("Changes: the node does not answer")).to_be_visible()
    node.start()
    expect(page.get_by_text("No changes yet")).to_be_visible()
    visit(page, "overview")
    expect(sentence).to_contain_text("Protecting")


@case
def a_page_without_data_says_that_the_node_does_not_answer(browser):
    node = Node("rules: [{ id: login, key: ip, limit: 5/h }]")
    page = open_page(browser, node, "health")
    expect(page.get_by_role("region", name="Counter store")).to_contain_text("in the memory")
    node.kill()
    visit(page, "overview")
    main = page.get_by_role("main")
    expect(page.locator("#sentence")).to_contain_text("The node does not answer")
    expect(main).to_contain_text("Requests: the node does not answer")
    expect(main).to_contain_text("Latest denials: the node does not answer")
    assert "Protecting:" not in page.locator("#sentence").inner_text()
    visit(page, "decisions")
    expect(main).to_contain_text("Decisions: the node does not answer")


@case
def a_phone_shows_how_busy_a_rule_is_on_a_second_line(browser):
    node = Node("rules: [{ id: login, key: ip, limit: 5/h }]")
    assert node.passed(25, ip="203.0.113.9") == 5
    page = open_page(browser, node)
    page.set_viewport_size({"width": 360, "height": 740})
    visit(page, "rules")
    second = page.get_by_role("region", name="Rules in force").locator(".second-line")
    expect(second).to_be_visible()
    expect(second).to_contain_text("20 limited")
    expect(second).to_contain_text("% used")
    expect(second).to_contain_text("file")
    page.set_viewport_size({"width": 1280, "height": 740})
    expect(second).to_be_hidden()


@case
def addresses_of_bans_are_told_apart_on_a_phone(browser):
    node = Node("rules: []\nrules_db: sqlite:tollgate.db")
    keys = ["ip:203.0.113.101", "ip:203.0.113.102", "ip:2001:db8:85a3:8d3::/64"]
    for key in keys:
        assert node.admin("POST", "/v1/bans", {"key": key, "for": "24h", "reason": "scraping"}).status == 201
    page = open_page(browser, node, "bans")
    page.set_viewport_size({"width": 360, "height": 740})
    visit(page, "rules")
    visit(page, "bans")
    table = page.get_by_role("region", name="Bans in force")
    for key in keys:
        shown = table.get_by_text(key, exact=True)
        expect(shown).to_be_visible()
        hidden = shown.evaluate("element => [element.scrollWidth - element.clientWidth, element.scrollHeight - element.clientHeight]")
        assert max(hidden) <= 1, f"{key}: {hidden} px are hidden"
    expect(table.get_by_text("scraping", exact=True).locator("visible=true").first).to_be_visible()
