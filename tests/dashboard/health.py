"""The page Health: causes of trouble, and no calls that the node does not have."""

from playwright.sync_api import expect

from browser import case, open_page
from node import Node
from process import free_port, wait_until

RULES = "rules: [{ id: login, match: POST /login, key: ip, limit: 5/m }]"


@case
def an_upstream_that_is_down_and_a_rejected_reload_are_shown_with_their_causes(browser):
    dead = free_port()
    node = Node(f"upstreams: [http://127.0.0.1:{dead}]\nproxy: {{ health: {{ path: /, every: 200ms }} }}\n{RULES}")
    wait_until("the upstream counts as down", lambda: any(not each["up"] for each in node.health()["upstreams"]))
    page = open_page(browser, node, "health")
    upstreams = page.get_by_role("region", name="Upstreams", exact=True)
    expect(upstreams).to_contain_text(f"127.0.0.1:{dead}")
    expect(upstreams).to_contain_text("✗ down: ")
    expect(upstreams).to_contain_text("refused")
    node.write(node.config.replace("5/m", "five/m"))
    expect(page.get_by_role("region", name="Node", exact=True).locator("div").filter(has_text="Configuration file").last).to_contain_text("five/m")


@case
def no_call_is_made_that_the_node_does_not_have(browser):
    node = Node(f"rules_db: sqlite:tollgate.db\n{RULES}")
    page = open_page(browser, node, "rules")
    refused = []
    page.on("response", lambda response: response.status >= 400 and refused.append(f"{response.status} {response.url}"))
    page.evaluate("location.hash = '#/health'")
    expect(page.get_by_role("region", name="Queue", exact=True)).to_contain_text("None")
    expect(page.get_by_role("region", name="Nodes", exact=True)).to_contain_text("this node")
    assert not refused, refused
