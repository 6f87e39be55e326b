"""Edits: bans, rules with validation, stale edits, reverts."""

from playwright.sync_api import expect

from browser import case, open_page, visit
from node import Node
from simulation import node_with_sample

RULES = "rules_db: sqlite:tollgate.db\nrules: [{ id: all, key: ip, limit: 1000/m }]"
CHECKOUT = {"id": "checkout", "match": "POST /checkout", "key": ["user"], "limits": ["10/m"]}


@case
def a_banned_key_is_refused_until_it_is_lifted(browser):
    node = Node(RULES)
    client = {"method": "GET", "path": "/", "ip": "203.0.113.9"}
    assert node.check(**client).status == 200
    page = open_page(browser, node, "bans")
    page.get_by_role("button", name="Ban a key…").click()
    page.get_by_role("dialog").get_by_label("Key").fill("ip:203.0.113.9")
    page.get_by_role("dialog").get_by_label("Reason").fill("scraping")
    page.get_by_role("dialog").get_by_role("button", name="Ban").click()
    expect(page.get_by_role("cell", name="ip:203.0.113.9", exact=True)).to_be_visible()
    assert node.check(**client).status == 403
    page.get_by_role("button", name="Lift the ban of ip:203.0.113.9").click()
    page.get_by_role("dialog").get_by_role("button", name="Lift").click()
    expect(page.get_by_text("Nobody is banned")).to_be_visible()
    assert node.check(**client).status == 200


@case
def bans_are_imported_and_lifted_together(browser):
    node = Node(RULES)
    page = open_page(browser, node, "bans")
    page.get_by_role("button", name="Import…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("nonsense")
    dialog.get_by_role("button", name="Import").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    dialog.get_by_role("textbox").fill("ip:203.0.113.1 24h scraping\nip:203.0.113.2\nuser:evil 1h")
    dialog.get_by_role("button", name="Check").click()
    expect(dialog).to_contain_text("3 new, 0 changed")
    dialog.get_by_role("button", name="Import").click()
    expect(page.get_by_role("cell", name="permanent")).to_be_visible()
    assert node.check(ip="203.0.113.2").status == 403
    for key in ["ip:203.0.113.1", "ip:203.0.113.2"]:
        page.get_by_role("checkbox", name=f"Select {key}").check()
    page.get_by_role("button", name="Lift selected (2)…").click()
    page.get_by_role("dialog").get_by_role("button", name="Lift").click()
    expect(page.get_by_text("1 ban", exact=True)).to_be_visible()
    assert node.check(ip="203.0.113.2").status == 200


@case
def what_denied_clients_are_told_is_edited_with_the_rule(browser):
    node = Node(RULES)
    assert node.admin("POST", "/v1/rules", CHECKOUT | {"limits": ["1/h"]}).status == 201
    page = open_page(browser, node, "rules/checkout")
    draft = page.get_by_label("Rule (YAML)")
    rule = "id: checkout\nmatch: POST /checkout\nkey: [user]\nlimits: [1/h]\n"
    expect(draft).to_have_value(rule)
    draft.fill(rule + "deny: { message: slow down, body: '{\"e\": 1}' }\n")
    expect(page.locator(".problems")).to_contain_text("'body' needs 'content_type' as well")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    draft.fill(rule + "deny: { message: slow down, body: '{\"e\": 1}', content_type: application/json, retry_after_max: 5s }\n")
    expect(page.locator(".problems")).to_contain_text("valid")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("rule checkout is in force")).to_be_visible()
    hit = {"method": "POST", "path": "/checkout", "user": "ann"}
    assert node.check(**hit).status == 200
    denied = node.check(**hit)
    assert (denied.body["message"], denied.headers["retry-after"]) == ("slow down", "5"), denied
    visit(page, "rules")
    visit(page, "rules/checkout")
    reopened = 'deny: { message: slow down, body: "{\\"e\\": 1}", content_type: application/json, retry_after_max: "5s" }\n'
    expect(draft).to_have_value(rule + reopened)


@case
def a_rule_is_edited_checked_measured_applied_recorded_and_reverted(browser):
    node = node_with_sample(10)
    page = open_page(browser, node, "rules")
    page.get_by_role("link", name="checkout").click()
    draft = page.get_by_label("Rule (YAML)")
    rule = "id: checkout\nmatch: POST /checkout\nkey: [ip]\nlimits: [{}]\n"
    expect(draft).to_have_value(rule.format("1000/h"))
    apply = page.get_by_role("button", name="Apply")
    expect(apply).to_be_disabled()

    draft.fill(rule.format("ten/h"))
    expect(page.locator(".problems")).to_contain_text("line 4")
    expect(apply).to_be_disabled()
    draft.fill(rule.format("15/h"))
    expect(page.locator(".problems")).to_contain_text("valid")
    expect(page.locator(".diff").first).to_contain_text('− limits: ["1000/h"]')
    expect(page.locator(".diff").first).to_contain_text('+ limits: ["15/h"]')
    effect = page.locator("#effect")
    expect(effect.get_by_role("row", name="draft")).to_contain_text("5 (16.7 %)")
    expect(effect.get_by_role("row", name="in force")).to_contain_text("0 (0 %)")
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["1000/h"], "nothing is written by a check"

    apply.click()
    expect(page.get_by_text("rule checkout is in force")).to_be_visible()
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["15/h"]
    client = {"method": "POST", "path": "/checkout", "ip": "192.0.2.5"}
    assert node.passed(20, **client) == 15

    visit(page, "changes")
    latest = page.locator(".changes > li").first
    expect(latest).to_contain_text("rule checkout changed")
    expect(latest).to_contain_text("by local")
    expect(latest).to_contain_text('− limits: ["1000/h"]')
    expect(latest.locator(".effect")).to_contain_text("Under rule checkout, on this node:")
    latest.get_by_role("button", name="Revert change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('+ limits: ["1000/h"]')
    dialog.get_by_role("button", name="Revert").click()
    expect(page.locator(".changes > li").first).to_contain_text("reverts 0-2")
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["1000/h"]
    assert node.passed(20, **client) == 20


@case
def a_stale_edit_is_refused_and_shown_as_three_versions(browser):
    node = Node(RULES)
    assert node.admin("POST", "/v1/rules", CHECKOUT).status == 201
    page = open_page(browser, node, "rules/checkout")
    draft = page.get_by_label("Rule (YAML)")
    expect(draft).to_be_visible()
    other = {**CHECKOUT, "limits": ["30/m"], "mode": "shadow"}
    assert node.admin("PUT", "/v1/rules/checkout", other).status == 200
    mine = "id: checkout\nmatch: POST /checkout\nkey: [user]\nlimits: [20/m]\n"
    draft.fill(mine)
    page.get_by_role("button", name="Apply").click()
    conflict = page.get_by_role("region", name="Conflict")
    expect(conflict).to_contain_text("nothing was written")
    row = conflict.get_by_role("row", name="limits")
    for text in ['["10/m"]', '["30/m"]', '["20/m"]', "conflict"]:
        expect(row).to_contain_text(text)
    expect(conflict.get_by_role("row", name="mode")).to_contain_text("changed by another")
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["30/m"]
    conflict.get_by_role("button", name="Keep my draft").click()
    expect(draft).to_have_value(mine)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("rule checkout is in force")).to_be_visible()
    assert node.admin("GET", "/v1/rules/checkout").body["limits"] == ["20/m"]


@case
def a_rule_is_created_and_deleted(browser):
    node = Node(RULES)
    page = open_page(browser, node, "rules")
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Rule (YAML)").fill("id: fresh\nkey: ip\nlimit: 1/h\n")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(f"http://127.0.0.1:{node.admin_port}/#/rules/fresh")
    assert node.passed(3, method="GET", path="/", ip="203.0.113.9") == 1
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("rule fresh was deleted")).to_be_visible()
    assert node.passed(3, method="GET", path="/", ip="203.0.113.9") == 3
    visit(page, "rules/all")
    expect(page.get_by_text("This rule is in the configuration file")).to_be_visible()
    expect(page.get_by_label("Rule (YAML)")).not_to_be_editable()
    for heading in ["Draft", "What changes", "Measured effect", "History"]:
        expect(page.get_by_role("heading", name=heading)).to_have_count(0)


@case
def a_key_is_inspected_and_reset(browser):
    node = Node("rules: [{ id: login, key: ip, limit: 5/h }]")
    assert node.passed(7, ip="203.0.113.9") == 5
    page = open_page(browser, node, "keys")
    page.get_by_label("Rule").fill("login")
    page.get_by_label("Key", exact=True).fill("ip:203.0.113.9")
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".key-report")).to_contain_text("5 used")
    page.get_by_role("button", name="Reset…").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.locator(".key-report")).to_contain_text("0 used")
    assert node.passed(1, ip="203.0.113.9") == 1
