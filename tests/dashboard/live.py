"""Live data: the chart, top keys, decisions and their explanation, reconnects."""

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
