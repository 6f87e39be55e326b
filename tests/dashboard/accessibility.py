"""axe on every page in both themes; the keyboard; a narrow screen."""

from playwright.sync_api import expect

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


@case
def axe_finds_nothing_serious_in_both_themes(browser):
    node = busy_node()
    found = []
    for theme in ["light", "dark"]:
        page = open_page(browser, node, color_scheme=theme, bypass_csp=True)
        page.add_script_tag(path=AXE)
        for fragment in PAGES:
            visit(page, fragment)
            expect(page.locator("nav [aria-current]")).to_have_count(1)
            expect(page.get_by_text("Loading…")).to_have_count(0)
            found += [f"{theme} {fragment or 'overview'}: {each}" for each in page.evaluate(SERIOUS)]
        visit(page, "bans")
        page.get_by_role("button", name="Ban a key…").click()
        found += [f"{theme} dialog: {each}" for each in page.evaluate(SERIOUS)]
    assert not found, "\n".join(found)


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
    page.set_viewport_size({"width": 360, "height": 740})
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
