"""The keyboard alone: sorting, the slider, pausing, dialogs, and a list that is drawn again under the focus."""

from playwright.sync_api import Locator, Page, expect

from browser import case, open_page, visit
from node import Node
from process import wait_until
from simulation import node_with_sample

RULES = "rules_db: sqlite:tollgate.db\nrules: [{ id: login, match: POST /login, key: ip, limit: 5/h }, { id: api, match: GET /api, key: ip, limit: 9/h }]"
LOGIN = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}
MAX_TABS = 60


def tab_to(page: Page, wanted: Locator) -> None:
    """Presses the tab key until the control has the focus, and sees that this shows."""
    expect(wanted).to_be_visible()
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            assert wanted.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
            return
    raise AssertionError(f"{MAX_TABS} tabs do not reach {wanted}")


@case
def a_list_is_sorted_and_a_draft_is_dragged_with_the_keyboard(browser):
    node = node_with_sample(10)
    page = open_page(browser, node, "rules")
    table = page.get_by_role("region", name="Rules in force")
    heading = table.get_by_role("columnheader", name="Limited")
    tab_to(page, heading.get_by_role("button"))
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Space")
    expect(heading).to_have_attribute("aria-sort", "ascending")

    visit(page, "simulate")
    slider = page.get_by_role("slider")
    tab_to(page, slider)
    value = page.locator("output")
    expect(value).to_have_text("1000/h")
    page.keyboard.press("Home")
    expect(value).to_have_text("1/h")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(value).to_have_text("2/h")
    expect(page.get_by_text("26 of 30 requests denied")).to_be_visible()


@case
def decisions_are_paused_and_followed_with_the_keyboard(browser):
    node = Node(RULES)
    page = open_page(browser, node, "decisions")
    assert node.passed(6, **LOGIN) == 5
    table = page.get_by_role("region", name="Decisions, newest first")
    expect(table.get_by_text("✗ limited")).to_be_visible()
    pause = page.get_by_role("button", name="Pause")
    tab_to(page, pause)
    page.keyboard.press("Enter")
    proceed = page.get_by_role("button", name="Continue")
    expect(proceed).to_be_focused()
    rows = table.get_by_role("table").get_attribute("aria-rowcount")
    assert node.passed(2, method="GET", path="/api", ip="198.51.100.7") == 2
    expect(page.locator("#heard")).to_have_text("live")
    denials = lambda: node.admin("GET", "/v1/decisions?outcome=allowed&rule=api").body["decisions"]
    wait_until("the node has listed them", lambda: len(denials()) == 2)
    expect(table.get_by_role("table")).to_have_attribute("aria-rowcount", rows)
    page.keyboard.press("Enter")
    expect(table.get_by_role("link", name="ip:198.51.100.7").first).to_be_visible()
    tab_to(page, table.get_by_role("link", name="ip:203.0.113.9").first)
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_have_attribute("data-page", "keys")
    expect(page.locator(".key-report")).to_contain_text("5 used")


@case
def the_focus_stays_on_the_row_while_newer_ones_arrive(browser):
    node = Node(RULES)
    assert node.passed(6, **LOGIN) == 5
    page = open_page(browser, node, "decisions")
    table = page.get_by_role("region", name="Decisions, newest first")
    tab_to(page, table.get_by_role("link", name="ip:203.0.113.9").first)
    row = 'document.activeElement.closest("tr")'
    ident = page.evaluate(f"{row}.querySelector('code').textContent")
    index = page.evaluate(f"{row}.getAttribute('aria-rowindex')")
    node.passed(3, method="GET", path="/api", ip="198.51.100.7")
    expect(table.get_by_role("link", name="ip:198.51.100.7").first).to_be_visible()
    assert page.evaluate(f"{row}.querySelector('code').textContent") == ident
    assert page.evaluate(f"{row}.getAttribute('aria-rowindex')") != index


@case
def a_dialog_keeps_the_focus_and_gives_it_back(browser):
    node = Node(RULES)
    for number in (1, 2):
        assert node.admin("POST", "/v1/bans", {"key": f"ip:203.0.113.{number}", "for": "1h"}).status == 201
    page = open_page(browser, node, "bans")
    opener = page.get_by_role("button", name="Ban a key…")
    tab_to(page, opener)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Key")).to_be_focused()
    inside = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    for key in ["Tab"] * 8 + ["Shift+Tab"] * 8:
        page.keyboard.press(key)
        assert page.evaluate(inside), "the page behind a dialog is out of reach"
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()

    lift = page.get_by_role("button", name="Lift the ban of ip:203.0.113.2")
    tab_to(page, lift)
    drawn = lift.element_handle()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    wait_until("the list is drawn again", lambda: not drawn.evaluate("element => element.isConnected"))
    page.keyboard.press("Escape")
    expect(lift).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Lift").press("Enter")
    expect(page.get_by_text("1 ban", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Lift the ban of ip:203.0.113.1")).to_be_visible()
    assert page.evaluate("document.activeElement !== document.body"), "the focus is not lost with the row"
