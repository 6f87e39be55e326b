"""Live data: the chart, top keys, decisions and their explanation, reconnects."""

import json
import subprocess
from datetime import datetime

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node
from process import wait_until

RULES = """rules_db: sqlite:tollgate.db
rules:
  - { id: login, match: POST /login, key: ip, limit: 5/h }
  - { id: api, match: GET /api, key: user, limit: 1000/h }
"""
LOGIN = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}
LIMITED = """[...document.querySelectorAll(".chart .tall tbody td:nth-child(3)")]
  .reduce((sum, cell) => sum + Number(cell.textContent), 0)"""


@case
def the_chart_moves_after_real_denials(browser):
    node = Node(RULES)
    page = open_page(browser, node)
    expect(page.get_by_text("No requests in the last five minutes")).to_be_visible()
    assert node.passed(25, **LOGIN) == 5
    page.get_by_role("button", name="View as table").click()
    wait_until("20 denials are shown", lambda: page.evaluate(LIMITED) == 20)
    before = page.locator(".plot path.area.denied").get_attribute("d")
    assert node.passed(30, **LOGIN) == 0
    wait_until("50 denials are shown", lambda: page.evaluate(LIMITED) == 50)
    assert page.locator(".plot path.area.denied").get_attribute("d") != before
    expect(page.get_by_role("region", name="Most limited keys").get_by_role("link", name="ip:203.0.113.9")).to_be_visible()
    visit(page, "rules")
    activity = page.get_by_role("row", name="login").get_by_role("img")
    expect(activity).to_have_attribute("aria-label", "last minute: 5 passed, 50 limited")


@case
def the_table_of_a_chart_has_every_point(browser):
    node = Node(RULES)
    page = open_page(browser, node)
    assert node.passed(25, **LOGIN) == 5
    page.get_by_role("button", name="View as table").click()
    region = page.get_by_role("region", name="Requests by outcome as a table")
    table = region.get_by_role("table")
    expect(table).to_have_attribute("aria-rowcount", "301")
    wait_until("20 denials are shown", lambda: page.evaluate(LIMITED) == 20)
    for span, rows in [("1h", 61), ("24h", 1_441), ("30d", 721)]:
        page.get_by_label("Time range").select_option(span)
        expect(table).to_have_attribute("aria-rowcount", str(rows))
    page.get_by_label("Time range").select_option("24h")
    expect(table).to_have_attribute("aria-rowcount", "1441")
    newest = region.locator("tbody tr:not(.space) td").first.inner_text()
    region.evaluate("element => { element.scrollTop = element.scrollHeight }")
    oldest = region.locator("tbody tr:not(.space)").last
    expect(oldest).to_have_attribute("aria-rowindex", "1441")
    newest, oldest = (datetime.fromisoformat(text) for text in (newest, oldest.locator("td").first.inner_text()))
    assert (newest - oldest).total_seconds() == 1_439 * 60, (newest, oldest)
    region.get_by_role("button", name="Limited").click()
    assert page.evaluate(LIMITED) == 20, "the most limited minutes are first"


@case
def the_last_minute_of_a_rule_is_a_table_too(browser):
    node = Node(RULES)
    assert node.passed(25, **LOGIN) == 5
    page = open_page(browser, node, "rules")
    opener = page.get_by_role("button", name="Last minute of login as a table")
    drawn = opener.element_handle()
    opener.click()
    table = page.get_by_role("dialog").get_by_role("table")
    expect(table).to_have_attribute("aria-rowcount", "61")
    table.get_by_role("button", name="Limited").click()
    expect(table.locator("tbody tr:not(.space)").first.locator("td").last).not_to_have_text("0")
    wait_until("the rules are drawn again", lambda: not drawn.evaluate("element => element.isConnected"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()


@case
def a_denial_appears_and_its_ticket_is_explained(browser):
    node = Node(RULES)
    page = open_page(browser, node, "decisions")
    expect(page.get_by_text("No decisions yet")).to_be_visible()
    node.passed(5, **LOGIN)
    denied = node.check(**LOGIN)
    assert denied.status == 429, denied
    tail = page.get_by_role("region", name="Decisions, newest first")
    expect(tail.get_by_text("✗ limited")).to_be_visible()
    page.get_by_label("Outcome").select_option("denied")
    expect(tail.get_by_text("✓ passed")).to_have_count(0)
    page.get_by_label("Ticket or request").fill(denied.body["ticket"])
    page.get_by_role("button", name="Explain").click()
    explained = page.locator(".explained")
    expect(explained).to_contain_text("✗ Denied")
    expect(explained).to_contain_text("login")
    page.get_by_label("Ticket or request").fill('{"method":"GET","path":"/api","user":"u"}')
    page.get_by_role("button", name="Explain").click()
    expect(explained).to_contain_text("✓ Passed")
    expect(explained.locator("li.matched")).to_contain_text("api")
    row = tail.get_by_role("row").filter(has_text="✗ limited").first
    expect(row).to_contain_text("5/h 5 used")
    page.set_viewport_size({"width": 360, "height": 740})
    visit(page, "rules")
    visit(page, "decisions")
    row = tail.get_by_role("row").filter(has_text="✗ limited").first
    expect(row.get_by_role("link", name="login")).to_be_visible()
    expect(row.locator(".second-line").get_by_text("5/h 5 used")).to_be_visible()


@case
def a_masked_key_leads_nowhere_and_its_plain_text_finds_its_decisions(browser):
    node = Node("rules: [{ id: mail, key: email, limit: 5/h }]")
    assert node.passed(7, email="ann@example.com") == 5
    page = open_page(browser, node, "keys")
    top = page.get_by_role("region", name="Top keys")
    masked = top.locator(".key").first
    expect(masked).to_contain_text("email:#")
    expect(top.get_by_role("link", name="email:#")).to_have_count(0)
    expect(page.get_by_text("A key with a mark (#…) is masked and cannot be opened.")).to_be_visible()
    mark = masked.inner_text()
    page.get_by_label("Rule").fill("mail")
    page.get_by_label("Key", exact=True).fill(mark)
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_text("is a mark, which does not tell the key")).to_be_visible()
    for name in ["Reset…", "Ban…", "Override…"]:
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_label("Key", exact=True).fill("email:ann@example.com")
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".key-report")).to_contain_text("5 used")
    expect(page.locator(".decision-line").filter(has_text="✗ limited").first).to_be_visible()
    expect(page.get_by_role("button", name="Ban…")).to_be_visible()
    visit(page, "decisions")
    tail = page.get_by_role("region", name="Decisions, newest first")
    expect(tail.locator(".key").first).to_contain_text("email:#")
    expect(tail.get_by_role("link", name="email:#")).to_have_count(0)


@case
def what_the_command_line_explains_is_explained_here(browser):
    node = Node(RULES)
    node.passed(5, **LOGIN)
    denied = node.check(**LOGIN)
    page = open_page(browser, node, "decisions")
    explained = page.locator(".explained")
    problem = json.dumps({"type": "about:blank", "status": 429, "instance": denied.body["ticket"]})
    for text, words in [
        ("POST /login --ip 203.0.113.9", "✗ Denied"),
        ("tollgate explain GET /api --user=ann", "✓ Passed"),
        (problem, "✗ Denied"),
        ("POST /login --header 'User-Agent=a b' --ip 203.0.113.10", "✓ Passed"),
    ]:
        page.get_by_label("Ticket or request").fill(text)
        page.get_by_role("button", name="Explain").click()
        expect(explained).to_contain_text(words)
        page.get_by_label("Ticket or request").fill('{"method":"GET", ')
        page.get_by_role("button", name="Explain").click()
        expect(page.get_by_text("this is not complete JSON: expected a ticket, a denied response, or a request such as POST /login")).to_be_visible()
    page.get_by_label("Ticket or request").fill("POST")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("alert").filter(has_text="Explain")).to_be_visible()
    page.get_by_label("Ticket or request").fill("GET /api --usr ann")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("--usr is not an option of a request")).to_be_visible()


@case
def a_change_is_marked_in_the_last_step_of_the_chart(browser):
    node = Node(RULES)
    node.passed(3, **LOGIN)
    page = open_page(browser, node)
    marks = page.locator(".plot .change-mark")

    def load_again() -> None:
        """Its minutes are asked for every 15 seconds."""
        for span in ["24h", "1h"]:
            page.get_by_label("Time range").select_option(span)

    load_again()
    expect(page.locator(".plot svg")).to_be_visible()
    expect(marks).to_have_count(0)
    for number in range(12):
        assert node.admin("PUT", "/v1/rules/one", {"key": "ip", "limit": f"{number + 1}/h"}).status in (200, 201)
        if number == 0:
            load_again()
            expect(marks.first).to_be_visible()
    load_again()
    expect(page.locator(".plot .change-count").last).to_contain_text("1")
    assert marks.count() <= 2, "changes that are close have one mark"
    page.get_by_role("button", name="View as table").click()
    expect(page.locator(".chart-table")).to_contain_text("rule one set by local")


@case
def commands_to_copy_have_the_addresses_of_the_node(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: []")
    page = open_page(browser, node)
    main = page.get_by_role("main")
    expect(main).to_contain_text(f"127.0.0.1:{node.http}/v1/check")
    expect(main).to_contain_text(f"--http http://127.0.0.1:{node.http}")
    command = page.locator(".copyable code").first.inner_text()
    assert '"allowed":true' in subprocess.run(command, shell=True, capture_output=True, text=True).stdout, command
    visit(page, "rules")
    expect(main).to_contain_text(f"127.0.0.1:{node.admin_port}/v1/rules")
    visit(page, "changes")
    expect(main).to_contain_text(f"tollgate rules apply rules.yaml --admin http://127.0.0.1:{node.admin_port}")


@case
def at_a_low_rate_too_few_decisions_are_timed(browser):
    node = Node(RULES)
    page = open_page(browser, node)
    expect(page.locator("#sentence")).to_contain_text("no requests now")
    node.check(**LOGIN)
    expect(page.locator("#sentence-detail")).to_contain_text("p50")


@case
def the_stream_reconnects_after_a_restart(browser):
    node = Node(RULES)
    page = open_page(browser, node)
    expect(page.locator("#heard")).to_have_text("live")
    node.restart()
    assert node.passed(25, **LOGIN) > 0
    expect(page.locator("#heard")).to_have_text("live")
    page.get_by_role("button", name="View as table").click()
    wait_until("20 denials are shown", lambda: page.evaluate(LIMITED) == 20)
    expect(page.get_by_role("main")).to_contain_text("Protecting")


@case
def a_hostile_key_is_inert_in_live_data(browser):
    node = Node("log_keys: plain\nrules: [{ id: all, key: user, limit: 1/h }]")
    page = open_page(browser, node, "decisions")
    hostile = "<img src=x onerror=document.title='owned'>"
    assert node.passed(5, user=hostile) == 1
    expect(page.get_by_role("region", name="Decisions, newest first").get_by_text("onerror").first).to_be_visible()
    visit(page, "keys")
    expect(page.get_by_role("region", name="Top keys").get_by_text("onerror")).to_be_visible()
    page.get_by_role("region", name="Top keys").get_by_role("link").first.click()
    expect(page.locator(".key-report")).to_contain_text("1 used")
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
