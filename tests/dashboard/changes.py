"""The log of changes: its kinds, the steps of ramps, and the measured effect."""

from playwright.sync_api import expect

from browser import case, open_page
from node import Node
from process import wait_until

CONFIG = "rules_db: sqlite:tollgate.db\nrules: []"
BANS = 120
LOGIN = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}


@case
def changes_of_one_kind_are_found_behind_many_others(browser):
    node = Node(CONFIG)
    assert node.admin("POST", "/v1/rules", {"id": "login", "key": "ip", "limit": "5/m"}).status == 201
    for number in range(BANS):
        assert node.admin("POST", "/v1/bans", {"key": f"ip:203.0.113.{number}", "for": "1h"}).status == 201
    assert node.admin("PUT", "/v1/enforce", {"enforce": "shadow"}).status == 200
    page = open_page(browser, node, "changes")
    entries = page.locator(".changes > li")
    expect(entries).to_have_count(50)
    expect(entries.first).to_contain_text("panic switch set to shadow")
    kinds = page.get_by_label("Which changes")
    kinds.select_option("rules")
    expect(entries).to_have_count(1)
    expect(entries).to_contain_text("rule login created")
    kinds.select_option("allow list")
    expect(page.get_by_text("No such change")).to_be_visible()
    expect(entries).to_have_count(0)
    kinds.select_option("panic switch")
    expect(entries).to_have_count(1)
    kinds.select_option("bans")
    expect(entries).to_have_count(50)
    page.get_by_role("button", name="Older changes").click()
    expect(entries).to_have_count(100)


@case
def automatic_bans_in_a_row_are_one_line_that_opens(browser):
    rule = "{ id: login, key: ip, limit: 1/h, ban: { key: [ip], after: 2, within: 1h, for: 1h } }"
    node = Node(f"rules_db: sqlite:tollgate.db\nrules: [{rule}]")
    assert node.admin("POST", "/v1/allow", {"key": "user:probe"}).status == 201
    for number in range(60):
        node.passed(4, ip=f"203.0.113.{number}")
    written = lambda: node.admin("GET", "/v1/audit?what=ban&limit=100").body["changes"]
    wait_until("the bans are in the log", lambda: len(written()) == 60)
    assert node.admin("POST", "/v1/bans", {"key": "ip:192.0.2.1", "for": "1h"}).status == 201
    page = open_page(browser, node, "changes")
    entries = page.locator("ol.changes > li")
    expect(entries).to_have_count(3)
    expect(entries.nth(0)).to_contain_text("ban ip:192.0.2.1 created")
    expect(entries.nth(1)).to_contain_text("60 automatic bans")
    expect(entries.nth(1)).to_contain_text("by rule login")
    expect(entries.nth(2)).to_contain_text("allow user:probe created")
    lines = entries.nth(1).get_by_role("listitem")
    expect(lines).to_have_count(0)
    entries.nth(1).locator("summary").click()
    expect(lines).to_have_count(60)
    expect(lines.filter(has_text="203.0.113.7")).to_contain_text("2 denials by rule login")
    lines.filter(has=page.get_by_role("link", name="ip:203.0.113.7", exact=True)).get_by_role("button", name="Revert change").click()
    page.get_by_role("dialog").get_by_role("button", name="Revert").click()
    expect(entries.first).to_contain_text("ban ip:203.0.113.7 deleted")
    assert node.check(ip="203.0.113.7").status == 429


@case
def effects_of_rules_are_measured_as_they_come_into_view(browser):
    node = Node(CONFIG)
    for number in range(20):
        rule = {"id": f"rule-{number:02}", "match": f"/{number}", "key": "ip", "limit": "5/m"}
        assert node.admin("POST", "/v1/rules", rule).status == 201
    assert node.admin("POST", "/v1/allow", {"key": "user:probe"}).status == 201
    page = open_page(browser, node, "changes")
    entries = page.locator(".changes > li")
    expect(entries).to_have_count(21)
    expect(entries.nth(1)).to_contain_text("Under rule rule-19, on this node:")
    assert entries.last.locator(".effect").inner_text() == "", "what is below is not measured yet"
    entries.last.scroll_into_view_if_needed()
    expect(entries.last).to_contain_text("Under rule rule-00, on this node:")
    expect(entries.first.locator(".effect")).to_be_empty()
    entries.first.get_by_role("button", name="Effect").click()
    expect(entries.first.get_by_role("status")).to_contain_text("Of all requests, on this node:")


@case
def a_step_of_a_ramp_is_named_and_has_no_reversal(browser):
    node = Node(CONFIG)
    rules = {"rules": [{"id": "login", "key": "ip", "limit": "5/m"}]}
    answer = node.admin("POST", "/v1/rules/import?guard=denied%3C50%25&for=10m", rules)
    assert answer.status == 200, answer
    page = open_page(browser, node, "changes")
    expect(page.get_by_role("region", name="Ramp")).to_be_visible()
    page.get_by_role("button", name="Enforce now").click()
    ended = page.locator(".changes > li").first
    expect(ended).to_contain_text("ramp of rule login ended")
    expect(ended.get_by_role("button", name="Revert")).to_have_count(0)
    expect(ended.get_by_role("button", name="Effect")).to_have_count(1)
    page.get_by_label("Which changes").select_option("panic switch")
    expect(page.get_by_text("No such change")).to_be_visible()
    page.get_by_label("Which changes").select_option("ramp steps")
    expect(page.locator(".changes > li")).to_have_count(1)


@case
def the_effect_of_a_set_is_measured_on_its_rules(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: api, match: GET /api, key: ip, limit: 1/h }]")
    node.passed(60, method="GET", path="/api", ip="203.0.113.1")
    start = node.admin("GET", "/v1/series?step=second").body["points"]
    wait_until("some seconds are counted", lambda: len(node.admin("GET", "/v1/series?step=second").body["points"]) > len(start) + 3)
    rules = [{"id": name, "match": f"POST /{name}", "key": "ip", "limit": "5/h"} for name in ("login", "reset")]
    assert node.admin("POST", "/v1/rules/import", {"rules": rules}).status == 200

    def counted() -> bool:
        node.passed(10, **LOGIN)
        points = node.admin("GET", "/v1/series?step=second&rule=login").body["points"]
        return sum(point["denied"] for point in points) > 30

    wait_until("denials are counted", counted)
    page = open_page(browser, node, "changes")
    entry = page.locator(".changes > li").first
    entry.get_by_role("button", name="Effect").click()
    expect(entry).to_contain_text("Under its 2 rules, on this node: 0 of 0 requests a minute were limited in the")
    text = entry.get_by_role("status").inner_text()
    assert "10 min before" not in text and "10 min since" not in text, text
    since = text.split("before, and ")[1]
    assert not since.startswith("0 of"), text


@case
def the_effect_on_a_rule_without_a_series_is_not_called_zero(browser):
    node = Node(CONFIG)
    rules = [{"id": f"rule-{number:03}", "match": f"/{number}", "key": "ip", "limit": "1/h"} for number in range(101)]
    assert node.admin("POST", "/v1/rules/import", {"rules": rules}).status == 200
    for number in range(100):
        for _ in range(3):
            node.check(method="GET", path=f"/{number}", ip="203.0.113.9")
    wait_until("100 rules have a series", lambda: len(node.admin("GET", "/v1/activity").body["rules"]) == 100)
    for _ in range(2):
        node.check(method="GET", path="/100", ip="203.0.113.9")
    assert node.admin("PUT", "/v1/rules/rule-100", {"match": "/100", "key": "ip", "limit": "2/h"}).status == 200
    page = open_page(browser, node, "changes")
    entry = page.locator(".changes > li").first
    entry.get_by_role("button", name="Effect").click()
    expect(entry).to_contain_text("Rule rule-100 has no series of its own: only the 100 most active rules do")
    expect(entry).to_contain_text("Of all requests, on this node:")
