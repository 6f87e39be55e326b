//! Which callers may use which routes.

use std::sync::Arc;

use serde_json::json;
use tollgate_testkit::{Client, Folder, Server, tollgate};

use crate::admin::bans::bans;

#[test]
fn without_tokens_only_local_hosts_and_the_own_origin_are_served() {
    let server = Server::start("");
    let own = server.admin.to_string();
    let status =
        |headers: &[(&str, &str)]| Client::to(server.admin).request("GET", "/v1/bans", headers, b"").status;
    assert_eq!(status(&[("host", &own)]), 200);
    assert_eq!(status(&[("host", "localhost:7070")]), 200);
    assert_eq!(status(&[("host", "[::1]:7070")]), 200);
    assert_eq!(status(&[("host", &own), ("origin", &format!("http://{own}"))]), 200);
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7070", "203.0.113.9"] {
        assert_eq!(status(&[("host", host)]), 403, "{host}");
    }
    for origin in ["http://evil.example", "null", &format!("http://{own}.evil.example"), ""] {
        assert_eq!(status(&[("host", &own), ("origin", origin)]), 403, "{origin}");
    }
    let mut client = Client::to(server.admin);
    client.write(b"GET /v1/bans HTTP/1.1\r\n\r\n");
    assert_eq!(client.answer().status, 403, "no Host at all");
    let ban = json!({ "key": "user:ann", "for": "1h" }).to_string();
    let forged = Client::to(server.admin).request(
        "POST",
        "/v1/bans",
        &[("origin", "http://evil.example")],
        ban.as_bytes(),
    );
    assert_eq!((forged.status, bans(&server).len()), (403, 0));
}

const READER: &str = "reader-0123456789";
const OPERATOR: &str = "operator-0123456789";

fn with_tokens() -> Arc<Folder> {
    let folder = Folder::new();
    folder.write("tokens", format!("# who may do what\nread {READER}\noperate {OPERATOR}\n"));
    folder.configure("tokens_file: tokens\nrules: [{ id: a, limit: 9/y }]");
    folder
}

#[test]
fn tokens_have_roles() {
    let server = Server::start_in(&with_tokens());
    let ban = json!({ "key": "user:ann", "for": "1h" }).to_string();
    let send = |method: &str, path: &str, token: &str| {
        let authorization = format!("Bearer {token}");
        let headers: &[_] = if token.is_empty() { &[] } else { &[("authorization", authorization.as_str())] };
        let body = if method == "POST" { ban.as_str() } else { "" };
        Client::to(server.admin).request(method, path, headers, body.as_bytes())
    };
    for (method, path) in
        [("GET", "/v1/rules"), ("GET", "/v1/bans"), ("GET", "/metrics"), ("GET", "/v1/keys?rule=a")]
    {
        for (token, status) in [("", 401), ("wrong-0123456789", 401), (READER, 200), (OPERATOR, 200)] {
            assert_eq!(send(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(send("GET", "/v1/rules", "").header("www-authenticate"), Some("Bearer"));
    for (method, path, done) in
        [("POST", "/v1/bans", 201), ("DELETE", "/v1/bans/user:ann", 200), ("DELETE", "/v1/keys?rule=a", 200)]
    {
        for (token, status) in [("", 401), (READER, 403), (OPERATOR, done)] {
            assert_eq!(send(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(send("GET", "/healthz", "").status, 200);
    assert_eq!(send("GET", "/readyz", "").status, 200);
    let elsewhere = [("host", "tollgate.example"), ("authorization", &format!("Bearer {READER}"))];
    assert_eq!(Client::to(server.admin).request("GET", "/v1/rules", &elsewhere, b"").status, 200);
    for secret in [READER, OPERATOR, "wrong-0123456789"] {
        assert!(!server.log().contains(secret), "the log tells no tokens");
    }
}

#[test]
fn the_command_line_sends_the_token_of_its_environment() {
    let server = Server::start_in(&with_tokens());
    let admin = format!("http://{}", server.admin);
    let run = |token: &str, args: &[&str]| {
        let mut command = tollgate_testkit::binary();
        if !token.is_empty() {
            command.env("TOLLGATE_TOKEN", token);
        }
        tollgate_testkit::run(command.args(args).args(["--admin", &admin])).code
    };
    assert_eq!(run("", &["ban", "ls"]), Some(5));
    assert_eq!(run(READER, &["ban", "ls"]), Some(0));
    assert_eq!(run(READER, &["ban", "add", "user:ann"]), Some(5));
    assert_eq!(run(OPERATOR, &["ban", "add", "user:ann"]), Some(0));
    assert_eq!(run("wrong-0123456789", &["key", "show", "a"]), Some(5));
}

#[test]
fn an_admin_address_open_to_others_needs_tokens() {
    let folder = Folder::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let config = folder.write("open.yaml", format!("listen: {{ http: off, admin: '{address}' }}\n"));
        let ran = tollgate(&["serve", "-c", config.to_str().expect("a plain path")]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("tokens_file") && ran.stderr.contains(address), "{ran:?}");
    }
    let folder = with_tokens();
    let config = folder.write("open.yaml", "listen: { http: off, admin: 0.0.0.0:0 }\ntokens_file: tokens\n");
    let server = Server::start_at(&folder, &config);
    server.wait_for_log("admin listens on 0.0.0.0:");
}

/// Every call that changes something, with the least role that it takes.
const EDITS: [(&str, &str, &str); 14] = [
    ("POST", "/v1/rules", "admin"),
    ("PUT", "/v1/rules/a", "admin"),
    ("DELETE", "/v1/rules/a", "admin"),
    ("POST", "/v1/rules/import", "admin"),
    ("POST", "/v1/allow", "admin"),
    ("DELETE", "/v1/allow/user:ann", "admin"),
    ("POST", "/v1/overrides", "admin"),
    ("DELETE", "/v1/overrides?rule=a&key=user:ann", "admin"),
    ("PUT", "/v1/enforce", "admin"),
    ("POST", "/v1/audit/0-1/rollback", "admin"),
    ("POST", "/v1/bans", "operate"),
    ("POST", "/v1/bans/import", "operate"),
    ("DELETE", "/v1/bans/user:ann", "operate"),
    ("DELETE", "/v1/keys?rule=a", "operate"),
];

#[test]
fn an_edit_takes_the_role_that_it_says() {
    let folder = Folder::new();
    let admin = "administrator-0123456789";
    folder.write("tokens", format!("read {READER}\noperate {OPERATOR} bob\nadmin {admin} ann\n"));
    folder.configure("tokens_file: tokens\nrules: [{ id: a, limit: 9/y }]");
    let server = Server::start_in(&folder);
    let status = |method: &str, path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        Client::to(server.admin).request(method, path, &[("authorization", &bearer)], b"{").status
    };
    for (method, path, role) in EDITS {
        let refused = |token: &str| matches!(status(method, path, token), 401 | 403);
        assert!(refused("wrong-0123456789") && refused(READER), "{method} {path}");
        assert_eq!(refused(OPERATOR), role == "admin", "{method} {path}");
        assert!(!refused(admin), "{method} {path}");
    }
    let expected = EDITS.len() * 2 + EDITS.iter().filter(|(.., role)| *role == "admin").count();
    server.wait_for_log_times("admin call refused", expected);
    let log = server.log();
    assert_eq!(log.matches("admin call refused").count(), expected, "each is logged once");
    assert!(log.contains("caller=\"bob\"") && log.contains("caller=\"read-1\""), "by name: {log}");
    for secret in [READER, OPERATOR, admin, "wrong-0123456789", "user:ann"] {
        assert!(!log.contains(secret), "the log tells {secret}");
    }
}

#[test]
fn edits_are_refused_to_other_hosts_and_origins() {
    let server = Server::start("rules: [{ id: a, limit: 9/y }]");
    for (method, path, _) in EDITS {
        for headers in [
            [("host", "evil.example"), ("x", "y")],
            [("host", "127.0.0.1.evil.example"), ("x", "y")],
            [("host", "localhost"), ("origin", "http://evil.example")],
            [("host", "localhost"), ("origin", "null")],
        ] {
            let refused = Client::to(server.admin).request(method, path, &headers, b"{}");
            assert_eq!(refused.status, 403, "{method} {path} {headers:?}");
        }
    }
    for (method, path) in [
        ("GET", "/v1/rules/export"),
        ("GET", "/v1/audit"),
        ("GET", "/openapi.json"),
        ("OPTIONS", "/v1/rules"),
    ] {
        let refused = Client::to(server.admin).request(method, path, &[("host", "evil.example")], b"");
        assert_eq!(refused.status, 403, "{method} {path}");
        assert_eq!(refused.header("access-control-allow-origin"), None);
    }
    server.wait_for_log_times("admin call refused", EDITS.len() * 4 + 4);
}

#[test]
fn tokens_of_the_environment_need_no_file() {
    let folder = Folder::new();
    let config = folder.write("open.yaml", "listen: { http: off, admin: 0.0.0.0:0 }\n");
    let mut command = tollgate_testkit::binary();
    command
        .env("TOLLGATE_TOKENS", format!("admin {OPERATOR} ann\nread {READER}"))
        .arg("serve")
        .arg("-c")
        .arg(&config);
    let server = Server::run(&folder, &mut command);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.admin.port()));
    let send = |token: &str, method: &str, path: &str, body: &str| {
        Client::to(address).request(
            method,
            path,
            &[("authorization", &format!("Bearer {token}"))],
            body.as_bytes(),
        )
    };
    assert_eq!(send("wrong-0123456789", "GET", "/v1/rules", "").status, 401);
    assert_eq!(send(OPERATOR, "POST", "/v1/rules", "{\"id\":\"a\",\"limit\":\"5/m\"}").status, 201);
    assert_eq!(send(READER, "GET", "/v1/audit", "").json()["changes"][0]["who"], "ann");

    let mut command = tollgate_testkit::binary();
    command.env("TOLLGATE_TOKENS", "admin too-short ann").arg("serve").arg("-c").arg(&config);
    let ran = tollgate_testkit::run(&mut command);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("TOLLGATE_TOKENS: line 1") && !ran.stderr.contains("too-short"), "{ran:?}");
}

#[test]
fn the_password_of_the_database_is_never_shown() {
    let secret = "s3cr3t-Passw0rd";
    let server = Server::start(&format!(
        "rules_db: postgres://tollgate:{secret}@127.0.0.1:1/limits?replica=127.0.0.1:2\non_rules_error: open\nrules: [{{ id: a, limit: 9/y }}]"
    ));
    let rule = "{\"id\":\"b\",\"limit\":\"5/m\"}";
    let answers = [
        server.admin("POST", "/v1/rules", rule),
        server.admin("PUT", "/v1/rules/b", rule),
        server.admin("DELETE", "/v1/rules/b", ""),
        server.admin("POST", "/v1/rules/import", "rules: []"),
        server.admin("GET", "/v1/audit", ""),
        server.admin("GET", "/v1/rules/export", ""),
    ];
    for answer in &answers {
        assert_eq!(answer.status, 503, "{answer}");
        assert!(!answer.text().contains(secret), "{answer}");
    }
    let pending = [
        server.admin("POST", "/v1/bans", "{\"key\":\"user:a\",\"for\":\"1h\"}"),
        server.admin("PUT", "/v1/enforce", "{\"enforce\":\"off\"}"),
    ];
    for answer in &pending {
        assert!(answer.status == 202 && !answer.text().contains(secret), "{answer}");
    }
    let listed = server.admin("GET", "/v1/rules", "");
    assert_eq!(
        (listed.status, &listed.json()["rules"][0]["id"]),
        (200, &json!("a")),
        "what is in force is shown"
    );
    for page in ["/", "/healthz", "/readyz", "/metrics"] {
        assert!(!server.admin("GET", page, "").text().contains(secret), "{page}");
    }
    assert!(!server.log().contains(secret), "{}", server.log());
}
