"""Keys: which are limited most, and what is known of one."""

import re

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node

BATCH = 1_000
"""Requests of a call, at most."""
MANY = 6
"""So many thousand keys do not fit a sketch, which has 2,048 counters."""


@case
def who_is_limited_most_is_first_unless_a_key_is_asked_for(browser):
    node = Node("rules: [{ id: login, key: ip, limit: 5/h }]")
    assert node.passed(9, ip="203.0.113.9") == 5
    page = open_page(browser, node, "keys")
    headings = page.get_by_role("main").get_by_role("heading", level=2)
    expect(headings).to_have_text(["Top keys", "One key"])
    page.get_by_role("region", name="Top keys").get_by_role("link", name="ip:203.0.113.9").click()
    expect(headings).to_have_text(["One key", "Top keys"])
    expect(page.locator(".key-report")).to_contain_text("5 used")


@case
def the_recent_decisions_of_a_key_have_their_limit_and_its_bans(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: login, key: ip, limit: 5/h }]")
    assert node.passed(7, ip="203.0.113.9") == 5
    page = open_page(browser, node, "keys?rule=login&key=ip%3A203.0.113.9")
    recent = page.locator("section").filter(has=page.get_by_role("heading", name="One key"))
    limited = recent.get_by_role("listitem").filter(has_text="✗ limited").first
    expect(limited).to_contain_text("login")
    expect(limited).to_contain_text("5/h 5 used")
    assert node.admin("POST", "/v1/bans", {"key": "ip:203.0.113.9", "for": "1h"}).status == 201
    assert node.check(ip="203.0.113.9").status == 403
    banned = recent.get_by_role("listitem").filter(has_text="✗ banned")
    expect(banned).to_have_count(1)
    expect(recent).to_contain_text("✗ ip:203.0.113.9: banned until")
    visit(page, "keys?key=ip%3A203.0.113.9")
    expect(recent).to_contain_text("Name the rule whose counter")
    expect(banned).to_have_count(1)
    expect(limited).to_be_visible()


@case
def a_count_that_may_be_off_says_by_how_much(browser):
    node = Node("log_keys: plain\nrules: [{ id: all, key: user, limit: 1000/h }]")
    for first in range(0, MANY * BATCH, BATCH):
        hits = [{"path": "/", "user": f"u{first + number}"} for number in range(BATCH)]
        assert node.ask("/v1/check/batch", hits).status == 200
    node.passed(20, user="often")
    page = open_page(browser, node, "keys")
    page.get_by_label("Which keys").select_option("allowed")
    row = page.get_by_role("region", name="Top keys").get_by_role("row").filter(has_text="user:often")
    expect(row).to_contain_text("±")
    count = row.locator("td").last
    middle, error = (int(part.replace(",", "")) for part in count.inner_text().split(" ±"))
    assert middle - error <= 20 <= middle + error, count.inner_text()
    expect(count.locator("[title]")).to_have_attribute("title", re.compile(r"^the true count is from \d+ to \d+$"))
