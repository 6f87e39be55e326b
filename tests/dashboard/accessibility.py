"""axe on every page in both themes; the keyboard; a narrow screen."""

from playwright.sync_api import expect

from access import node_with_tokens
from browser import case, open_page, visit
from node import Node
from process import ROOT

AXE = ROOT / "target/servers/axe/node_modules/axe-core/axe.min.js"
PAGES = ["", "rules", "rules/checkout", "keys?rule=login&key=ip%3A203.0.113.9", "decisions", "bans", "simulate", "changes", "health"]
SERIOUS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
}"""


def busy_node() -> Node:
    node = Node(
        "rules_db: sqlite:tollgate.db\nallow: ['ip:10.0.0.0/8']\n"
        "rules: [{ id: login, match: POST /login, key: ip, limit: 5/m, track: true }]"
    )
    node.admin("POST", "/v1/rules", {"id": "checkout", "match": "POST /checkout", "key": ["user"], "limits": ["10/m"]})
    node.admin("POST", "/v1/bans", {"key": "ip:203.0.113.66", "for": "1h", "reason": "scraping"})
    node.passed(12, method="POST", path="/login", ip="203.0.113.9")
    return node


WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 740}


class Axe:
    """A page under axe; what it found serious, with the state in which it was."""

    def __init__(self, browser, node: Node, theme: str, size: dict, fragment: str = ""):
        # Without transitions: in the middle of one, contrasts are those of neither state.
        options = {"color_scheme": theme, "viewport": size, "reduced_motion": "reduce"}
        self.page = open_page(browser, node, fragment, bypass_csp=True, **options)
        self.page.add_script_tag(path=AXE)
        self.where = f"{theme} {size['width']} px"
        self.found: list[str] = []

    def see(self, state: str) -> None:
        self.found += [f"{self.where}, {state}: {each}" for each in self.page.evaluate(SERIOUS)]

    def visit(self, fragment: str) -> None:
        visit(self.page, fragment)
        expect(self.page.get_by_role("main")).to_have_attribute("data-page", fragment.split("?")[0].split("/")[0] or "overview")
        expect(self.page.get_by_text("Loading…")).to_have_count(0)


@case
def axe_finds_nothing_serious_in_both_themes(browser):
    node = busy_node()
    found = []
    for theme in ["light", "dark"]:
        for size in [WIDE, PHONE]:
            axe = Axe(browser, node, theme, size)
            for fragment in PAGES:
                axe.visit(fragment)
                expect(axe.page.locator("nav [aria-current]")).to_have_count(1)
                axe.see(fragment or "overview")
            axe.visit("bans")
            axe.page.get_by_role("button", name="Ban a key…").click()
            axe.see("dialog")
            found += axe.found
    assert not found, "\n".join(found)


@case
def axe_finds_nothing_serious_in_any_state(browser):
    found = []
    for theme, size in [("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)]:
        node = busy_node()
        axe = Axe(browser, node, theme, size)
        page = axe.page
        page.get_by_role("button", name="View as table").click()
        expect(page.get_by_role("region", name="Requests by outcome as a table").get_by_role("row").nth(5)).to_be_visible()
        axe.see("chart as a table")
        explain_a_ticket(axe, node)
        conflict(axe, node)
        ramp(axe, node)
        assert node.admin("PUT", "/v1/enforce", {"enforce": "shadow"}).status == 200
        expect(page.locator("#banner")).to_contain_text("Protection is in shadow")
        axe.see("banner")
        if (theme, size) in [("light", WIDE), ("dark", PHONE)]:
            axe.visit("rules")
            expect(page.get_by_role("link", name="checkout")).to_be_visible()
            node.kill()
            expect(page.locator("#heard")).to_contain_text("last heard")
            axe.see("stale")
            page.get_by_role("link", name="checkout").hover()
            axe.see("stale, a row under the pointer")
        found += axe.found
    locked = node_with_tokens()
    for theme, size in [("light", WIDE), ("dark", PHONE)]:
        axe = Axe(browser, locked, theme, size, "rules")
        expect(axe.page.get_by_role("dialog")).to_contain_text("This node needs a token.")
        axe.see("token dialog")
        found += axe.found
    assert not found, "\n".join(found)


def explain_a_ticket(axe: Axe, node: Node) -> None:
    axe.visit("decisions")
    denied = node.check(method="POST", path="/login", ip="203.0.113.9")
    axe.page.get_by_label("Ticket or request").fill(denied.body["ticket"])
    axe.page.get_by_role("button", name="Explain").click()
    expect(axe.page.locator(".explained")).to_contain_text("✗ Denied")
    axe.see("explained ticket")


def conflict(axe: Axe, node: Node) -> None:
    axe.visit("rules/checkout")
    draft = axe.page.get_by_label("Rule (YAML)")
    expect(draft).to_be_visible()
    assert node.admin("PUT", "/v1/rules/checkout", {"match": "POST /checkout", "key": ["user"], "limits": ["30/m"]}).status == 200
    draft.fill("id: checkout\nmatch: POST /checkout\nkey: [user]\nlimits: [20/m]\n")
    axe.page.get_by_role("button", name="Apply").click()
    expect(axe.page.get_by_role("region", name="Conflict")).to_be_visible()
    axe.see("conflict")
    axe.visit("rules/new")
    expect(axe.page.locator(".problems")).to_contain_text("valid")
    axe.see("new rule")


def ramp(axe: Axe, node: Node) -> None:
    rules = {"rules": [{"id": "ramped", "key": "ip", "limit": "5/m"}]}
    assert node.admin("POST", "/v1/rules/import?guard=denied%3C50%25&for=10m", rules).status == 200
    axe.visit("changes")
    expect(axe.page.get_by_role("region", name="Ramp")).to_be_visible()
    axe.see("ramp")


@case
def the_keyboard_reaches_everything(browser):
    node = busy_node()
    page = open_page(browser, node)
    expect(page.get_by_role("navigation")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    visit(page, "bans")
    lift = page.get_by_role("button", name="Lift the ban of")
    expect(lift).to_be_visible()
    for _ in range(40):
        if lift.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    outline = lift.evaluate("element => getComputedStyle(element).outlineStyle")
    assert outline == "solid", f"the focus is visible: {outline}"
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@case
def no_page_is_wider_than_a_phone(browser):
    node = busy_node()
    page = open_page(browser, node)
    page.set_viewport_size(PHONE)
    for fragment in PAGES:
        visit(page, fragment)
        expect(page.get_by_text("Loading…")).to_have_count(0)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{fragment or 'overview'} is {width} px wide"


@case
def the_theme_switch_wins_over_the_system(browser):
    node = Node("rules: []")
    page = open_page(browser, node, color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.get_by_role("button", name="Theme: auto").click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    light = page.evaluate(back)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate(back) == light
