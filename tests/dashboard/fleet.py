"""All nodes: their list on the page Health, and the views of the whole fleet."""

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node
from process import folder, free_port

LOGIN = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}


def fleet(count: int) -> list[Node]:
    database = folder("database") / "rules.db"
    nodes = []
    for _ in range(count):
        port = free_port()
        nodes.append(
            Node(
                f"rules_db: sqlite:{database}\nadvertise: http://127.0.0.1:{port}\n"
                "rules: [{ id: login, match: POST /login, key: ip, limit: 5/h }]",
                admin_port=port,
            )
        )
    return nodes


@case
def all_nodes_are_listed_and_added_up_and_a_frozen_one_is_named(browser):
    first, second = fleet(2)
    assert first.passed(7, **LOGIN) == 5
    assert second.passed(8, **LOGIN) == 5
    page = open_page(browser, first, "health")
    nodes = page.get_by_role("region", name="Nodes", exact=True)
    expect(nodes).to_contain_text("(this node)")
    other = nodes.locator("dl > div").filter(has_text=f"http://127.0.0.1:{second.admin_port}")
    expect(other).to_contain_text("✓ ok")
    expect(other).to_contain_text("generation 1")

    visit(page, "keys")
    count = page.get_by_role("region", name="Top keys").get_by_role("row", name="ip:203.0.113.9").locator("td").last
    expect(count).to_have_text("2")
    page.get_by_label("Nodes").select_option("fleet")
    expect(count).to_have_text("5")
    visit(page, "overview")
    expect(page.get_by_label("Nodes")).to_have_value("fleet")
    expect(page.get_by_role("region", name="Most limited keys").get_by_text("5", exact=True)).to_be_visible()

    second.process.signal("STOP")
    try:
        visit(page, "keys")
        expect(page.get_by_text("1 of 2 nodes answered. Not counted:").first).to_be_visible()
        expect(page.get_by_text("no answer within 2s").first).to_be_visible()
        expect(count).to_have_text("2")
        visit(page, "health")
        expect(other).to_contain_text("✗ no answer within 2s")
    finally:
        second.process.signal("CONT")
    expect(other).to_contain_text("✓ ok")


@case
def pages_are_of_the_chosen_nodes_and_say_so(browser):
    first, second = fleet(2)
    assert first.passed(7, **LOGIN) == 5
    assert second.passed(8, **LOGIN | {"ip": "203.0.113.77"}) == 5
    page = open_page(browser, first)
    sentence = page.locator("#sentence")
    denials = page.locator("section").filter(has=page.get_by_role("heading", name="Latest denials"))
    expect(denials).to_contain_text("No denials since this page was opened")
    page.get_by_label("Nodes").select_option("fleet")
    expect(sentence).to_contain_text("Protecting on 2 of 2 nodes")
    expect(page.locator("#sentence-detail")).to_contain_text("This node: Protecting")
    expect(denials).to_contain_text("203.0.113.77")
    expect(denials).to_contain_text("203.0.113.9")

    visit(page, "decisions")
    tail = page.get_by_role("region", name="Decisions, newest first")
    expect(tail.get_by_role("link", name="ip:203.0.113.77").first).to_be_visible()
    page.get_by_label("Nodes").select_option("node")
    expect(tail.get_by_role("link", name="ip:203.0.113.9").first).to_be_visible()
    expect(tail.get_by_role("link", name="ip:203.0.113.77")).to_have_count(0)

    visit(page, "rules")
    sums = page.get_by_role("region", name="Rules in force").get_by_role("row", name="login").get_by_role("img").first
    expect(sums).to_have_attribute("aria-label", "last minute: 5 passed, 2 limited")
    page.get_by_label("Nodes").select_option("fleet")
    expect(sums).to_have_attribute("aria-label", "last minute: 10 passed, 5 limited")

    rule = {"id": "other", "match": "/other", "key": "ip", "limit": "1/h"}
    assert first.admin("POST", "/v1/rules", rule).status == 201
    visit(page, "changes")
    entry = page.locator(".changes > li").first
    entry.get_by_role("button", name="Effect").click()
    expect(entry).to_contain_text("Under rule other, on all nodes:")
    second.process.signal("STOP")
    try:
        entry.get_by_role("button", name="Effect").click()
        expect(entry).to_contain_text("on the 1 of 2 nodes that answer")
        visit(page, "overview")
        expect(sentence).to_contain_text("Protecting on 1 of 2 nodes")
        visit(page, "decisions")
        expect(page.get_by_text("1 of 2 nodes answered. Not counted:").first).to_be_visible()
    finally:
        second.process.signal("CONT")
    page.get_by_label("Nodes").select_option("node")
    visit(page, "changes")
    entry.get_by_role("button", name="Effect").click()
    expect(entry).to_contain_text("Under rule other, on this node:")
