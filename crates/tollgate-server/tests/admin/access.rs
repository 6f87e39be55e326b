//! Who may call what.

use std::sync::Arc;

use serde_json::json;

use crate::bans::bans;
use crate::harness::{self, Client, Folder, Server, tollgate};

#[test]
fn without_tokens_only_local_hosts_and_the_own_origin_are_served() {
    let server = Server::start("");
    let own = server.admin.to_string();
    let status =
        |headers: &[(&str, &str)]| Client::to(server.admin).ask("GET", "/v1/bans", headers, b"").status;
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
    let forged = Client::to(server.admin).ask(
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
    let ask = |method: &str, path: &str, token: &str| {
        let authorization = format!("Bearer {token}");
        let headers: &[_] = if token.is_empty() { &[] } else { &[("authorization", authorization.as_str())] };
        let body = if method == "POST" { ban.as_str() } else { "" };
        Client::to(server.admin).ask(method, path, headers, body.as_bytes())
    };
    for (method, path) in
        [("GET", "/v1/rules"), ("GET", "/v1/bans"), ("GET", "/metrics"), ("GET", "/v1/keys?rule=a")]
    {
        for (token, status) in [("", 401), ("wrong-0123456789", 401), (READER, 200), (OPERATOR, 200)] {
            assert_eq!(ask(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(ask("GET", "/v1/rules", "").header("www-authenticate"), Some("Bearer"));
    for (method, path, done) in
        [("POST", "/v1/bans", 201), ("DELETE", "/v1/bans/user:ann", 200), ("DELETE", "/v1/keys?rule=a", 200)]
    {
        for (token, status) in [("", 401), (READER, 403), (OPERATOR, done)] {
            assert_eq!(ask(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(ask("GET", "/healthz", "").status, 200);
    assert_eq!(ask("GET", "/readyz", "").status, 200);
    let elsewhere = [("host", "tollgate.example"), ("authorization", &format!("Bearer {READER}"))];
    assert_eq!(Client::to(server.admin).ask("GET", "/v1/rules", &elsewhere, b"").status, 200);
    for secret in [READER, OPERATOR, "wrong-0123456789"] {
        assert!(!server.log().contains(secret), "the log tells no tokens");
    }
}

#[test]
fn the_command_line_sends_the_token_of_its_environment() {
    let server = Server::start_in(&with_tokens());
    let admin = format!("http://{}", server.admin);
    let run = |token: &str, args: &[&str]| {
        let mut command = harness::binary();
        if !token.is_empty() {
            command.env("TOLLGATE_TOKEN", token);
        }
        harness::run(command.args(args).args(["--admin", &admin])).code
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
    assert!(server.log().contains("admin listens on 0.0.0.0:"));
}
