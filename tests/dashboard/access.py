"""Who sees what: the page without a token, tokens, roles, headers, hostile text."""

from playwright.sync_api import expect

from browser import case, open_page, sign_in, visit
from node import Node
from process import folder

READ = "reader-token-0123456789"
OPERATE = "operator-token-0123456789"
ADMIN = "administrator-token-01234"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
RULES = "rules: [{ id: login, match: POST /login, key: ip, limit: 5/m }]"


def node_with_tokens() -> Node:
    directory = folder("node")
    (directory / "tokens").write_text(f"read {READ} eve\noperate {OPERATE} otto\nadmin {ADMIN} ada\n")
    (directory / "tokens").chmod(0o600)
    return Node(f"tokens_file: tokens\nrules_db: sqlite:tollgate.db\n{RULES}", directory=directory)


@case
def the_page_opens_without_a_token_under_a_strict_policy(browser):
    node = node_with_tokens()
    answer = node.admin("GET", "/")
    assert answer.status == 200, answer
    assert answer.headers["content-security-policy"] == POLICY, answer.headers
    assert answer.headers["cache-control"] == "no-store"
    assert "login" not in answer.text, "the page contains no data"
    script = node.admin("GET", "/dashboard/main.js")
    assert script.headers["content-type"].startswith("text/javascript"), script.headers
    again = node.admin("GET", "/dashboard/main.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status, again.text) == (304, ""), again
    assert node.admin("GET", "/dashboard/..%2fmain.rs").status == 404
    assert node.admin("GET", "/v1/caller").status == 401


@case
def a_token_is_asked_for_and_forgotten_on_reload(browser):
    node = node_with_tokens()
    page = open_page(browser, node, "rules")
    expect(page.get_by_role("dialog")).to_contain_text("This node needs a token.")
    page.get_by_label("Token").fill("a-token-that-nobody-has-given")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("the token is unknown")
    sign_in(page, ADMIN)
    expect(page.locator("#caller")).to_contain_text("ada · admin")
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    stored = page.evaluate("JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])")
    assert ADMIN not in stored, stored
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text("This node needs a token.")
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("main")).to_contain_text("Sign in to see this")


@case
def a_role_that_may_only_read_sees_disabled_controls_and_is_refused(browser):
    node = node_with_tokens()
    page = open_page(browser, node, "bans", token=READ)
    expect(page.get_by_text("Banning needs the role operate: yours is read.")).to_be_visible()
    expect(page.get_by_role("button", name="Ban a key…")).to_be_disabled()
    # Against a page that was tampered with: the node decides.
    status = page.evaluate(
        "async token => (await fetch('/v1/bans', { method: 'POST', body: '{\"key\":\"ip:192.0.2.1\"}', "
        "headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' } })).status",
        READ,
    )
    assert status == 403, status
    visit(page, "rules/new")
    expect(page.get_by_text("Changing rules needs the role admin: yours is read.")).to_be_visible()
    expect(page.get_by_role("button", name="Create")).to_be_disabled()
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, OPERATE)
    visit(page, "bans")
    expect(page.get_by_role("button", name="Ban a key…")).to_be_enabled()
    expect(page.get_by_role("button", name="Allow a key…")).to_be_disabled()


@case
def hostile_text_is_inert(browser):
    node = Node(f"rules_db: sqlite:tollgate.db\nlog_keys: plain\n{RULES}")
    hostile = "user:<img src=x onerror=document.title='owned'>"
    answer = node.admin("POST", "/v1/bans", {"key": hostile, "for": "1h", "reason": "<script>document.title='owned'</script>"})
    assert answer.status == 201, answer
    page = open_page(browser, node, "bans")
    expect(page.get_by_role("cell", name="<script>document.title='owned'</script>")).to_be_visible()
    expect(page.locator(".key", has_text="<img")).to_be_visible()
    visit(page, "changes")
    expect(page.get_by_role("main")).to_contain_text("onerror")
    visit(page, "keys?rule=login&key=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.get_by_role("main").get_by_role("alert")).to_be_visible()
    assert page.locator("main img").count() == 0 and page.locator("main script").count() == 0
    assert "owned" not in page.title()
