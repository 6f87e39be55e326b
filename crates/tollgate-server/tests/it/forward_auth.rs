//! `/v1/forward-auth`, called as a gateway calls it: which callers are served, what the rules see of a request, and
//! descriptions that are incomplete or contradict themselves.

use tollgate_testkit::{Answer, Client, Folder, Server};

const PATH: &str = "/v1/forward-auth";
const RULES: &str = "
trusted_proxies: [127.0.0.1]
rules_db: none
identity: { user: header:x-user }
rules:
  - { id: login, match: 'POST /login/{name}', host: api.example.com, key: ip, limit: 2/h }
  - { id: user, match: /users, key: user, limit: 1/h }
  - { id: session, match: /session, key: cookie:sid, limit: 1/h }
  - { id: search, match: /search, key: query:q, limit: 1/h }
bans: [{ key: 'ip:203.0.113.66', until: 2100-01-01T00:00:00Z }]
";

const REQUEST: [(&str, &str); 4] = [
    ("x-forwarded-method", "GET"),
    ("x-forwarded-uri", "/"),
    ("x-forwarded-host", "api.example.com"),
    ("x-forwarded-for", "203.0.113.9"),
];

/// Asks about a request that differs from [`REQUEST`] in some headers; an empty value leaves the header out.
fn ask(server: &Server, method: &str, changes: &[(&str, &str)]) -> Answer {
    let unchanged = REQUEST.iter().filter(|(name, _)| !changes.iter().any(|(other, _)| other == name));
    let headers: Vec<_> =
        unchanged.chain(changes.iter().filter(|(_, value)| !value.is_empty())).copied().collect();
    Client::to(server.http).request(method, PATH, &headers, b"")
}

fn statuses(server: &Server, count: usize, changes: &[(&str, &str)]) -> Vec<u16> {
    (0..count).map(|_| ask(server, "GET", changes).status).collect()
}

#[test]
fn the_rules_see_the_described_request() {
    let server = Server::start(RULES);
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login/ann?next=%2F")];
    assert_eq!(statuses(&server, 3, &login), [200, 200, 429]);
    let other_client = [login[0], login[1], ("x-forwarded-for", "203.0.113.10")];
    assert_eq!(statuses(&server, 1, &other_client), [200]);
    let other_host = [login[0], login[1], ("x-forwarded-host", "www.example.com")];
    assert_eq!(statuses(&server, 3, &other_host), [200, 200, 200]);
    let canonical =
        [login[0], ("x-forwarded-uri", "/x/../login//ann"), ("x-forwarded-host", "API.example.com:443")];
    assert_eq!(statuses(&server, 1, &canonical), [429], "another spelling is the same request");

    for (uri, name, value, other) in [
        ("/users", "x-user", "ann", "bob"),
        ("/session", "cookie", "a=b; sid=1", "sid=2"),
        ("/search?q=1", "x-any", "1", "2"),
    ] {
        let by = |value| statuses(&server, 1, &[("x-forwarded-uri", uri), (name, value)]);
        assert_eq!([by(value), by(value)], [[200], [429]], "{uri}");
        let expected = if name == "x-any" { 429 } else { 200 };
        assert_eq!(by(other), [expected], "{uri}");
    }
    assert_eq!(statuses(&server, 1, &[("x-forwarded-for", "203.0.113.66")]), [403], "banned");
    // Read from the right, as far as trusted proxies reach.
    assert_eq!(statuses(&server, 1, &[("x-forwarded-for", "203.0.113.66, 203.0.113.9")]), [200]);
    assert_eq!(statuses(&server, 1, &[("x-forwarded-for", "203.0.113.66, 127.0.0.1")]), [403]);
}

#[test]
fn it_passes_with_empty_200_and_denies_in_the_format_that_the_client_prefers() {
    let server = Server::start(RULES);
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login/ann")];
    let passed = ask(&server, "GET", &login);
    assert_eq!((passed.status, passed.body.len()), (200, 0), "{passed}");
    assert!(
        passed.header("ratelimit").is_some_and(|value| value.starts_with("\"login\";r=1;t=")),
        "{passed}"
    );
    assert_eq!(passed.header("cache-control"), Some("no-store"));
    // A gateway may keep the client's method.
    assert_eq!(ask(&server, "POST", &login).status, 200);
    let denied = ask(&server, "PATCH", &login);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"][0], "login");
    assert!(denied.header("retry-after").is_some(), "{denied}");
    let ticket = denied.header("tollgate-ticket").expect("for gateways that drop the body");
    assert_eq!(denied.json()["instance"], format!("urn:tollgate:ticket:{ticket}"));
    let page = ask(&server, "GET", &[login[0], login[1], ("accept", "text/html")]);
    assert_eq!((page.status, page.header("content-type")), (429, Some("text/html; charset=utf-8")));
}

#[test]
fn incomplete_and_contradictory_descriptions_are_rejected_by_name() {
    let server = Server::start(RULES);
    for (name, value, more) in [
        ("x-forwarded-method", "", ""),
        ("x-forwarded-uri", "", ""),
        ("x-forwarded-for", "", ""),
        ("x-forwarded-method", "GET POST", ""),
        ("x-forwarded-uri", "http://api.example.com/", ""),
        ("x-forwarded-uri", "relative", ""),
        ("x-forwarded-uri", "/a b", ""),
        ("x-forwarded-method", "GET", "POST"),
        ("x-forwarded-uri", "/", "/free"),
        ("x-forwarded-host", "a", "b"),
    ] {
        let mut changes = vec![(name, value)];
        changes.extend(Some((name, more)).filter(|_| !more.is_empty()));
        let answer = ask(&server, "GET", &changes);
        assert_eq!((answer.status, &answer.json()["field"]), (400, &name.into()), "{value:?}: {answer}");
    }
    for host in ["", "a/b", "a@b"] {
        let answer = ask(&server, "GET", &[("x-forwarded-host", host)]);
        assert_eq!((answer.status, &answer.json()["field"]), (400, &"host".into()), "{host:?}: {answer}");
    }
}

#[test]
fn only_trusted_proxies_are_served_whatever_they_send() {
    let server = Server::start("rules_db: none\n");
    let refused = ask(&server, "GET", &[]);
    assert_eq!(refused.status, 403, "{refused}");
    let detail = refused.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(detail.contains("trusted_proxies") && detail.contains("127.0.0.1"), "{detail}");
    server.wait_for_log("trusted_proxies");

    // A change of the file is enough.
    let folder = &server.folder;
    let config = std::fs::read_to_string(folder.path("tollgate.yaml")).expect("the configuration");
    folder.write("tollgate.yaml", config + "trusted_proxies: [127.0.0.1]\n");
    server.wait_for_log("generation 1 →");
    assert_eq!(ask(&server, "GET", &[]).status, 200);
}

#[test]
fn host_origin_and_authorization_are_those_of_the_gateways_client() {
    let folder = Folder::new();
    folder.write("tokens", "check s3cret-token-of-a-caller\n");
    folder.configure(&format!("{RULES}tokens_file: tokens\n"));
    for server in [Server::start(RULES), Server::start_in(&folder)] {
        let of_the_client = [
            ("host", "shop.example.com"),
            ("origin", "https://shop.example.com"),
            ("sec-fetch-site", "cross-site"),
            ("authorization", "Bearer of-the-client"),
        ];
        let answer = ask(&server, "GET", &of_the_client);
        assert_eq!(answer.status, 200, "{answer}");
    }
}

#[test]
fn the_header_of_the_address_is_the_configured_one() {
    let server = Server::start(&format!("{RULES}trusted_header: forwarded\n"));
    let missing = ask(&server, "GET", &[]);
    assert_eq!((missing.status, &missing.json()["field"]), (400, &"forwarded".into()));
    assert_eq!(ask(&server, "GET", &[("forwarded", "for=203.0.113.66")]).status, 403);
    assert_eq!(ask(&server, "GET", &[("forwarded", "for=203.0.113.67")]).status, 200);
}
