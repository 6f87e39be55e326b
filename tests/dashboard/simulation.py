"""Rules that are tried on the sample of live traffic before they are in force."""

import re

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node
from process import wait_until

CONFIG = "rules_db: sqlite:tollgate.db\nrules: []"
CHECKOUT = {"id": "checkout", "match": "POST /checkout", "key": ["ip"], "limits": ["1000/h"]}


def node_with_sample(requests: int) -> Node:
    """A node whose sample has so many requests of each of two clients, one with twice as many."""
    node = Node(CONFIG)
    assert node.admin("POST", "/v1/rules", CHECKOUT).status == 201
    for ip, times in [("203.0.113.9", requests), ("203.0.113.10", 2 * requests)]:
        assert node.passed(times, method="POST", path="/checkout", ip=ip) == times
    body = {"rules": "rules: [{ id: all, limit: 1/h }]", "sample": "live"}
    sampled = lambda: node.admin("POST", "/v1/simulate", body).body["requests"]
    wait_until("the sample has all requests", lambda: sampled() == 3 * requests)
    return node


@case
def a_rule_that_clients_share_is_named_when_clients_are_sampled(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: all, limit: 100000/h }]")
    assert node.admin("POST", "/v1/rules", CHECKOUT).status == 201
    path = "/" + "x" * 12_000
    for number in range(250):
        node.check(method="GET", path=path, ip=f"192.0.2.{number}")
    note = "rule {} counts all clients together: one client in"
    page = open_page(browser, node, "rules/checkout")
    page.get_by_label("Rule (YAML)").fill("id: checkout\nlimit: 100000/h\n")
    expect(page.get_by_text(note.format("checkout"))).to_be_visible()
    expect(page.get_by_text("Requests of one client in")).to_be_visible()
    page.get_by_label("Rule (YAML)").fill("id: checkout\nkey: ip\nlimit: 100000/h\n")
    expect(page.get_by_text(note.format("checkout"))).to_have_count(0)
    expect(page.get_by_text("Requests of one client in")).to_be_visible()
    visit(page, "simulate")
    page.get_by_label("Rules (YAML)").fill("rules: [{ id: try, limit: 100/h }]")
    expect(page.get_by_text(note.format("try"))).to_be_visible()


@case
def the_affected_clients_follow_the_limit(browser):
    node = node_with_sample(10)
    page = open_page(browser, node, "simulate")
    page.get_by_role("combobox").select_option("checkout")
    expect(page.get_by_text("No client of the sample would be limited")).to_be_visible()
    slider = page.get_by_role("slider")
    clients = page.get_by_role("region", name="Clients that would be limited")
    slider.fill("15")
    expect(clients.get_by_role("cell", name="ip:203.0.113.10")).to_be_visible()
    expect(clients.get_by_role("cell", name="ip:203.0.113.9")).to_have_count(0)
    slider.fill("5")
    expect(clients.get_by_role("cell", name="ip:203.0.113.9")).to_be_visible()
    page.get_by_role("button", name="Apply…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('− limits: ["1000/h"]')
    expect(dialog).to_contain_text('+ limits: ["5/h"]')
    expect(dialog).to_contain_text("20 of 30 requests denied")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("0 rules created, 1 changed")).to_be_visible()
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["5/h"]


@case
def the_rule_with_the_most_requests_is_chosen_at_first(browser):
    node = node_with_sample(10)
    assert node.admin("POST", "/v1/rules", CHECKOUT | {"id": "another", "match": "/another"}).status == 201
    node.passed(3, path="/another", ip="203.0.113.9")
    page = open_page(browser, node, "simulate")
    expect(page.locator("select[name=rule]")).to_have_value("checkout")
    expect(page.get_by_label("Rules (YAML)")).to_have_value(re.compile("id: checkout"))
    expect(page.get_by_role("slider")).to_be_enabled()
    expect(page.get_by_text("These rules are in force as written.")).to_be_visible()
    expect(page.get_by_role("button", name="Use live requests")).to_have_count(0)
    page.locator("select[name=rule]").select_option("")
    expect(page.get_by_role("slider")).to_have_count(0)
    page.locator("select[name=rule]").select_option("checkout")
    page.get_by_role("slider").fill("5")
    bars = page.get_by_role("region", name="Clients that would be limited").locator(".bar-svg")
    expect(bars).to_have_count(2)
    starts = {round(bars.nth(number).bounding_box()["x"]) for number in range(2)}
    assert len(starts) == 1, f"the bars start at {starts}"


@case
def one_of_several_limits_is_dragged(browser):
    node = node_with_sample(10)
    assert node.admin("POST", "/v1/rules", CHECKOUT | {"id": "both", "limits": ["1000/h", "2000/d"]}).status == 201
    page = open_page(browser, node, "simulate")
    page.locator("select[name=rule]").select_option("both")
    text = page.get_by_label("Rules (YAML)")
    slider = page.get_by_role("slider")
    expect(text).to_have_value(re.compile(r"limits: \[1000/h, 2000/d\]"))
    expect(slider).to_have_value("1000")
    slider.fill("15")
    expect(text).to_have_value(re.compile(r"limits: \[15/h, 2000/d\]"))
    expect(page.get_by_text("5 of 30 requests denied")).to_be_visible()
    page.locator("select[name=limit]").select_option("2000/d")
    expect(slider).to_have_value("2000")
    slider.fill("5")
    expect(text).to_have_value(re.compile(r"limits: \[15/h, 5/d\]"))
    expect(page.get_by_text("20 of 30 requests denied")).to_be_visible()
    page.locator("select[name=rule]").select_option("checkout")
    expect(page.locator("select[name=limit]")).to_have_count(0)
    expect(slider).to_be_enabled()


@case
def a_rule_beyond_the_first_thousand_is_searched_on_the_node(browser):
    node = Node(CONFIG)
    rules = [{"id": f"rule-{number:04}", "match": f"/{number}", "limit": "5/m"} for number in range(1_200)]
    assert node.admin("POST", "/v1/rules/import", {"rules": rules}).status == 200
    page = open_page(browser, node, "simulate")
    expect(page.get_by_text("The first 1,000 of 1,200 rules are listed")).to_be_visible()
    page.get_by_label("Find a rule").fill("rule-115")
    expect(page.get_by_text("10 of 1,200 rules start like this.")).to_be_visible()
    page.locator("select[name=rule]").select_option("rule-1150")
    expect(page.get_by_label("Rules (YAML)")).to_have_value(re.compile("id: rule-1150"))
    page.get_by_label("Find a rule").fill("other")
    expect(page.get_by_text("No rule starts like this.")).to_be_visible()
    expect(page.locator("select[name=rule]")).to_have_value("rule-1150")


@case
def a_rule_of_the_configuration_file_is_tried_and_not_applied(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: [{ id: login, key: ip, limit: 5/m }]")
    page = open_page(browser, node, "simulate")
    apply = page.get_by_role("button", name="Apply…")
    expect(page.get_by_text("Applying creates 1 rule and changes 0.")).to_be_visible()
    expect(apply).to_be_enabled()
    page.get_by_role("combobox").select_option("login")
    page.get_by_role("slider").fill("3")
    expect(page.locator("#apply-note")).to_contain_text("configuration file")
    expect(apply).to_be_disabled()
    page.get_by_label("Rules (YAML)").fill("rules: [{ id: other, key: ip, limit: 3/m }]")
    expect(apply).to_be_enabled()


@case
def rules_are_tried_on_a_log(browser):
    node = Node(CONFIG)
    page = open_page(browser, node, "simulate")
    line = '{ip} - - [01/Jan/2026:00:00:0{n} +0000] "GET / HTTP/1.1" 200 1\n'
    log = "".join(line.format(ip="203.0.113.9", n=n) for n in range(9)) + line.format(ip="203.0.113.10", n=9)
    page.get_by_label("Access log").set_input_files({"name": "access.log", "mimeType": "text/plain", "buffer": log.encode()})
    expect(page.get_by_text("0 of 10 requests denied")).to_be_visible()
    expect(page.get_by_text("Requests of the log, 2026-01-01T00:00:00 to 2026-01-01T00:00:09.")).to_be_visible()
    page.get_by_label("Rules (YAML)").fill("- { id: try, key: ip, limit: 4/m }")
    expect(page.get_by_text("5 of 10 requests denied (50 %)")).to_be_visible()
    clients = page.get_by_role("region", name="Clients that would be limited")
    expect(clients.get_by_role("cell", name="ip:203.0.113.9")).to_be_visible()
    page.get_by_role("button", name="Use live requests").click()
    expect(page.get_by_text("The sample is empty")).to_be_visible()
