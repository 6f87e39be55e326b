"""The dashboard behind a path prefix of a reverse proxy."""

from playwright.sync_api import expect

from browser import case, open_page
from node import Node
from process import Process, accepts, find, folder, free_port, wait_until
from table import Missing

NGINX = """daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /limits/ {{
      proxy_pass http://127.0.0.1:{admin}/;
      proxy_http_version 1.1; proxy_buffering off; proxy_set_header Host $http_host;
    }}
  }}
}}
"""


def nginx(admin: int) -> int:
    program = find("nginx")
    if not program:
        raise Missing("nginx is not installed")
    port = free_port()
    directory = folder("nginx")
    (directory / "nginx.conf").write_text(NGINX.format(folder=directory, port=port, admin=admin))
    Process([program, "-p", directory, "-c", directory / "nginx.conf"], directory / "log")
    wait_until("nginx accepts", lambda: accepts(port))
    return port


@case
def everything_works_behind_a_path_prefix(browser):
    node = Node("rules_db: sqlite:tollgate.db\nrules: []")
    port = nginx(node.admin_port)
    page = open_page(browser, node)
    page.goto("about:blank")
    beside = []
    page.on("request", lambda request: f":{port}/limits/" in request.url or beside.append(request.url))
    page.goto(f"http://127.0.0.1:{port}/limits/#/rules")
    expect(page.locator("#heard")).to_have_text("live")
    expect(page.get_by_role("main")).to_contain_text(f"127.0.0.1:{port}/limits/v1/rules")
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Rule (YAML)").fill("id: fresh\nkey: ip\nlimit: 1/h\n")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("rule fresh is in force")).to_be_visible()
    expect(page).to_have_url(f"http://127.0.0.1:{port}/limits/#/rules/fresh")
    assert node.passed(3, ip="203.0.113.9") == 1
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("region", name="Most limited keys")).to_contain_text("203.0.113.9")
    assert not beside, beside
