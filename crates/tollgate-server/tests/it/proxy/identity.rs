//! Identity from the body.

use tollgate_testkit::{Client, Server, run};

use crate::proxy::api::Api;
use crate::proxy::in_front_of;

const LOGIN: &str = "identity: { email: json:email }
rules:
  - { id: login, match: POST /login, key: email, limit: 1/h }
  - { id: form, match: POST /form, key: 'form:user', limit: 1/h }
";

pub fn post(server: &Server, path: &str, body: &[u8]) -> u16 {
    Client::to(server.proxy).request("POST", path, &[], body).status
}

#[test]
fn logins_are_counted_by_the_email_in_their_json() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    assert_eq!(post(&server, "/login", br#"{"password":"x","email":"Ann@Example.com "}"#), 200);
    assert_eq!(post(&server, "/login", br#"{ "email" : "ann@example.com" }"#), 429);
    assert_eq!(post(&server, "/login", br#"{"email":"bob@example.com"}"#), 200);
    assert_eq!(api.received()[0].body, br#"{"password":"x","email":"Ann@Example.com "}"#);
}

#[test]
fn forms_are_read_too() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    assert_eq!(post(&server, "/form", b"password=x&user=a%6En"), 200);
    assert_eq!(post(&server, "/form", b"user=ann&password=y"), 429);
    assert_eq!(post(&server, "/form", b"user=bob"), 200);
}

#[test]
fn a_form_with_files_is_read_by_its_fields() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let post = |user: &str, file: usize| {
        let body = format!(
            "--XX\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\n{user}\r\n--XX\r\nContent-Disposition: form-data; \
             name=\"photo\"; filename=\"user\"\r\n\r\n{}\r\n--XX--\r\n",
            "x".repeat(file)
        );
        let headers = [("content-type", "multipart/form-data; boundary=XX")];
        let answer = Client::to(server.proxy).request("POST", "/form", &headers, body.as_bytes());
        assert!(answer.status == 429 || answer.body == body.as_bytes(), "byte for byte");
        answer.status
    };
    assert_eq!((post("ann", 10), post("ann", 10)), (200, 429));
    assert_eq!((post("bob", 3 << 20), post("bob", 10)), (200, 429));
    // What curl sends is read, too.
    let url = format!("http://{}/form", server.proxy);
    let curl = || {
        let mut command = std::process::Command::new("curl");
        command.args([
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-F",
            "photo=@Cargo.toml",
            "-F",
            "user=carl",
            &url,
        ]);
        run(&mut command).stdout
    };
    assert_eq!((curl().as_str(), curl().as_str()), ("200", "429"));
}

#[test]
fn a_file_that_is_being_sent_does_not_wait_for_its_end() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let mut client = Client::to(server.proxy);
    client.write(
        b"POST /form HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=XX\r\ncontent-length: 200000\r\n\r\n",
    );
    let head = "--XX\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\nann\r\n--XX\r\n\r\n";
    client.write(head.as_bytes());
    // Decided when the first 64 KiB are there; the rest may come when it likes.
    client.write(&vec![b'x'; 66_000]);
    tollgate_testkit::eventually("it is charged", || server.used("form", "form:user:ann") == [1]);
    client.write(&vec![b'x'; 200_000 - 66_000 - head.len()]);
    assert_eq!(client.answer().body.len(), 200_000);
}

#[test]
fn brackets_in_a_form_are_not_its_end() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let post = || {
        let mut client = Client::to(server.proxy);
        client.write(b"POST /form HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\ntransfer-encoding: chunked\r\n\r\n");
        client.write(b"4\r\na={}\r\n");
        // The two are read as one or as two.
        std::thread::yield_now();
        client.write(b"9\r\n&user=ann\r\n0\r\n\r\n");
        client.answer().status
    };
    assert_eq!((post(), post()), (200, 429));
}

#[test]
fn a_body_longer_than_what_is_read_arrives_whole() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let body = format!(r#"{{"email":"ann@example.com","picture":"{}"}}"#, "x".repeat(3 << 20));
    let answer = Client::to(server.proxy).request("POST", "/login", &[], body.as_bytes());
    assert_eq!(answer.status, 200);
    assert!(answer.body == body.as_bytes(), "byte for byte");
    assert_eq!(post(&server, "/login", body.as_bytes()), 429);
}

#[test]
fn chunks_are_read_as_far_as_the_json_goes() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let mut client = Client::to(server.proxy);
    client.write(b"POST /login HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    client.write(b"8\r\n{\"email\"\r\n");
    client.write(b"13\r\n:\"ann@example.com\"}\r\n");
    // Decided here: the rest may come when it likes.
    tollgate_testkit::eventually("it is charged", || server.used("login", "email:ann@example.com") == [1]);
    client.write(b"3\r\n   \r\n0\r\n\r\n");
    assert_eq!(client.answer().text(), "{\"email\":\"ann@example.com\"}   ");
}

#[test]
fn a_body_is_read_only_for_rules_that_match() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let mut client = Client::to(server.proxy);
    client.write(b"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(client.line().as_deref(), Some("HTTP/1.1 100 Continue"));
    client.line();
    client.write(b"body");
    assert_eq!(client.answer().text(), "body");
}

/// The body was not read where no general rule needed it.
#[test]
fn a_body_is_read_for_the_rule_of_a_single_user() {
    let api = Api::echo();
    let rule = "{ id: own, uid: ann, url: /own, time: hour, requests: 1 }";
    let server = in_front_of(&api, &format!("identity: {{ user: 'json:user' }}\nrules: [{rule}]"));
    let statuses =
        || ["ann", "bob"].map(|user| post(&server, "/own", format!(r#"{{"user":"{user}"}}"#).as_bytes()));
    assert_eq!(statuses(), [200, 200]);
    assert_eq!(statuses(), [429, 200]);
}

/// A ban of the file was found everywhere, one of the ban list only where a rule read the body.
#[test]
fn a_body_is_read_for_a_ban_that_was_added_meanwhile() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let statuses = || {
        ["ann", "bob"].map(|user| post(&server, "/other", format!(r#"{{"email":"{user}@x"}}"#).as_bytes()))
    };
    assert_eq!(statuses(), [200, 200]);
    for key in ["email:ann@x", "json:email:bob@x"] {
        server.admin("POST", "/v1/bans", format!(r#"{{"key":"{key}","for":"1h"}}"#));
    }
    assert_eq!(statuses(), [403, 403]);
}

pub const AMBIGUOUS: &str = "identity: { email: json:email }
rules:
  - { id: login, match: POST /login, key: email, limit: 3/h }
  - { id: number, match: POST /number, key: 'json:id', limit: 3/h }
  - { id: form, match: POST /form, key: 'form:user', limit: 3/h }
  - { id: header, match: /header, key: 'header:x-api-key', limit: 3/h }
  - { id: cookie, match: /cookie, key: 'cookie:sid', limit: 3/h }
  - { id: query, match: /query, key: 'query:api_key', limit: 3/h }
";

/// How many of six requests pass that carry another decoy each.
pub fn passed(send: impl Fn(usize) -> u16) -> usize {
    (0..6).map(send).filter(|status| *status == 200).count()
}

#[test]
fn a_rotating_decoy_in_a_body_yields_no_fresh_counter() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    let template = |path: &'static str, body: &'static str| {
        let number = body.len(); // other victims for each template
        passed(|n| {
            let body =
                body.replace("DECOY", &format!("d{number}-{n}")).replace("VICTIM", &format!("v{number}"));
            post(&server, path, body.as_bytes())
        })
    };
    for (path, body) in [
        ("/login", r#"{"email":"DECOY","email":"VICTIM"}"#),
        ("/login", r#"{"email":"VICTIM","email":"DECOY" }"#),
        ("/login", r#"{"email":"DECOY","Email":"VICTIM"  }"#),
        ("/login", r#"{"email":"DECOY","\ud800":0,"email":"VICTIM"}"#),
        ("/login", r#"{"email":"DECOY","x":"\ud800\u0041","EMAIL":"VICTIM"}"#),
        ("/login", r#"{"email":["DECOY","VICTIM"]}"#),
        ("/form", "user=DECOY&user=VICTIM"),
        ("/form", "user=VICTIM&User=DECOY&a=1"),
    ] {
        assert_eq!(template(path, body), 3, "{body}");
    }
    let parts =
        |user: &str| format!("--XX\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\n{user}\r\n");
    let multipart = |n: usize| {
        let body = format!("{}{}--XX--\r\n", parts(&format!("d{n}")), parts("victim"));
        let headers = [("content-type", "multipart/form-data; boundary=XX")];
        Client::to(server.proxy).request("POST", "/form", &headers, body.as_bytes()).status
    };
    assert_eq!(passed(multipart), 3, "multipart");
}

/// With a decoy before the first 64 KiB, and the victim behind them, only the decoy was counted.
#[test]
fn a_rotating_decoy_before_the_unread_part_of_a_body_yields_no_fresh_counter() {
    let api = Api::echo();
    let pad = "x".repeat(65 << 10);
    let parts =
        |user: &str| format!("--XX\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\n{user}\r\n");
    let file = format!("--XX\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n{pad}\r\n");
    for (path, content_type, body) in [
        ("/login", "application/json", format!(r#"{{"email":"DECOY","x":"{pad}","email":"victim"}}"#)),
        ("/login", "text/plain", format!(r#"{{"email":"DECOY","x":["{pad}"],"email":"victim"}}"#)),
        ("/form", "application/x-www-form-urlencoded", format!("user=DECOY&x={pad}&user=victim")),
        (
            "/form",
            "multipart/form-data; boundary=XX",
            format!("{}{file}{}--XX--\r\n", parts("DECOY"), parts("victim")),
        ),
    ] {
        let send = |server: &Server, n: usize, client: &str| {
            let body = body.replace("DECOY", &format!("d{n}"));
            let headers = [("content-type", content_type), ("x-forwarded-for", client)];
            Client::to(server.proxy).request("POST", path, &headers, body.as_bytes()).status
        };
        let rules = format!("trusted_proxies: ['127.0.0.1']\n{AMBIGUOUS}");
        let server = in_front_of(&api, &rules);
        assert_eq!(passed(|n| send(&server, n, "203.0.113.1")), 3, "{path} {content_type}");
        assert_eq!(send(&server, 9, "203.0.113.2"), 200, "another client has long bodies, too");
        assert_eq!(post(&server, path, br#"{"email":"d0","user":"d0"}"#), 200, "short bodies are as before");
        let strict = rules.replace("limit: 3/h", "limit: 3/h, ambiguous_key: deny");
        assert_eq!(passed(|n| send(&in_front_of(&api, &strict), n, "203.0.113.1")), 0);
    }
}

/// They counted as bodies without the field, which most rules skip, and servers in Java, PHP or with JSON5 read them.
#[test]
fn an_object_that_only_lenient_servers_read_escapes_no_rule() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    let bodies = [
        "{'email':'victim'}",
        "{/* } */\"email\":\"victim\"}",
        "{email:\"victim\"}",
        "{\"a\":1;\"email\":\"victim\"}",
        "{\"a\":{/*\"*/},\"email\":\"victim\",\"b\":{/*\"*/}}",
        "// {}\n{\"email\":\"victim\"}",
    ];
    assert_eq!(passed(|n| post(&server, "/login", bodies[n].as_bytes())), 3, "they share a counter");
    let strict = AMBIGUOUS.replace("limit: 3/h", "limit: 3/h, ambiguous_key: deny");
    let server = in_front_of(&api, &strict);
    assert_eq!(passed(|n| post(&server, "/login", bodies[n].as_bytes())), 0);
    assert_eq!(post(&server, "/login", br#"{"email":"victim"}"#), 200);
    assert_eq!(post(&server, "/login", b"no object"), 200, "a body without the field is missing it");
}

#[test]
fn a_number_is_one_key_however_it_is_written() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    let spellings = ["42", "42.0", "4.2e1", "420e-1", "42.00000000000000000000001", "\"42\""];
    let spelled = |n: usize| post(&server, "/number", format!("{{\"id\": {} }}", spellings[n]).as_bytes());
    assert_eq!(passed(spelled), 3);
}

#[test]
fn a_rotating_decoy_in_a_head_yields_no_fresh_counter() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    let get = |path: &str, headers: &[(&str, &str)]| {
        Client::to(server.proxy).request("GET", path, headers, b"").status
    };
    let decoy = |n: usize| format!("decoy-{n}");
    let lines = |n| get("/header", &[("x-api-key", &decoy(n)), ("X-Api-Key", "victim")]);
    assert_eq!(passed(lines), 3, "headers");
    let cookies = |n| get("/cookie", &[("cookie", &format!("sid={}; sid=victim", decoy(n)))]);
    assert_eq!(passed(cookies), 3, "cookies");
    let cookie_lines =
        |n| get("/cookie", &[("cookie", &format!("sid={}", decoy(n))), ("cookie", "sid=other")]);
    assert_eq!(passed(cookie_lines), 3, "cookie headers");
    let parameters = |n| get(&format!("/query?api_key={}&api%5Fkey=victim", decoy(n)), &[]);
    assert_eq!(passed(parameters), 3, "parameters");
    let nine = (0..9).map(|n| format!("api_key={n}")).collect::<Vec<_>>().join("&");
    assert_eq!(get(&format!("/query?{nine}"), &[]), 429, "more than eight values");
    let eight = (10..18).map(|n| format!("api_key={n}")).collect::<Vec<_>>().join("&");
    assert_eq!(get(&format!("/query?{eight}"), &[]), 200, "eight values");
    assert_eq!(server.used("query", "query:api_key:17"), [1], "each value is charged");
}

const COUNTED: &str = "rules:
  - { id: key, key: 'header:x-api-key', limit: 1/h, missing_key: deny }
";

#[test]
fn a_header_that_connection_removes_is_not_decided_on() {
    let api = Api::echo();
    let server = in_front_of(&api, COUNTED);
    let status = |connection: &str| {
        let headers = [("connection", connection), ("x-api-key", "decoy")];
        Client::to(server.proxy).request("GET", "/", &headers, b"").status
    };
    assert_eq!(status("X-Api-Key"), 429, "the API would not see it");
    assert_eq!(server.used("key", "header:x-api-key:decoy"), [0]);
    assert_eq!(status("x-other"), 200);
    assert_eq!(api.last().header("x-api-key"), Some("decoy"));
}

#[test]
fn the_connection_header_does_not_remove_headers_of_a_trusted_proxy() {
    let api = Api::echo();
    let rest = "trusted_proxies: [127.0.0.1]\nrules: [{ id: ip, key: ip, limit: 1/h }]";
    let server = in_front_of(&api, rest);
    let headers = [("connection", "close, X-Forwarded-For"), ("x-forwarded-for", "203.0.113.7")];
    assert_eq!(Client::to(server.proxy).request("GET", "/", &headers, b"").status, 200);
    assert_eq!(server.used("ip", "ip:203.0.113.7"), [1]);
    assert_eq!(api.last().header("x-forwarded-for"), Some("203.0.113.7, 127.0.0.1"));
}

#[test]
fn other_spellings_of_what_we_set_or_count_by_are_removed() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: key, key: 'header:x-api-key', limit: 9/h }]");
    let headers = [
        ("x-api-key", "a"),
        ("X_Api_Key", "b"),
        ("x-api_key", "c"),
        ("x-forwarded_for", "1.1.1.1"),
        ("X_Forwarded_Host", "evil"),
        ("x_real_ip", "1.1.1.1"),
        ("user_id", "kept"),
    ];
    assert_eq!(Client::to(server.proxy).request("GET", "/", &headers, b"").status, 200);
    let seen = api.last();
    let with_underscore: Vec<_> =
        seen.headers.iter().filter(|(name, _)| name.contains('_')).map(|(name, _)| name.as_str()).collect();
    assert_eq!(with_underscore, ["user_id"]);
    assert_eq!(seen.header("x-api-key"), Some("a"));
}

#[test]
fn identity_headers_are_stripped_by_default() {
    let headers = [
        ("x-real-ip", "203.0.113.7"),
        ("true-client-ip", "203.0.113.7"),
        ("x-original-url", "/admin"),
        ("x-http-method-override", "DELETE"),
        ("x-custom", "1"),
    ];
    let seen = |rest: &str| {
        let api = Api::echo();
        let server = in_front_of(&api, rest);
        assert_eq!(Client::to(server.proxy).request("GET", "/", &headers, b"").status, 200);
        let received = api.last();
        headers
            .map(|(name, _)| name)
            .into_iter()
            .filter(|name| received.header(name).is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(""), ["x-custom"]);
    assert_eq!(seen("trusted_proxies: [127.0.0.1]"), ["x-real-ip", "x-custom"]);
    assert_eq!(seen("strip_headers: []"), headers.map(|(name, _)| name));
    let others = ["x-real-ip", "true-client-ip", "x-original-url", "x-http-method-override"];
    assert_eq!(seen("strip_headers: [X-Custom]"), others);
}

#[test]
fn trailers_do_not_identify_the_client() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: key, key: 'header:x-api-key', limit: 9/h }]");
    let mut client = Client::to(server.proxy);
    client.write(
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nte: trailers\r\n\
          trailer: x-forwarded-for, x_forwarded_for, forwarded, x-real-ip, x-api-key, x-checksum\r\n\r\n\
          2\r\nhi\r\n0\r\nx-forwarded-for: 1.1.1.1\r\nx_forwarded_for: 1.1.1.1\r\nforwarded: for=1.1.1.1\r\n\
          x-real-ip: 1.1.1.1\r\nx-api-key: victim\r\nx-checksum: 42\r\n\r\n",
    );
    assert_eq!(client.answer().status, 200);
    let names: Vec<String> = api.last().trailers.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x-checksum"]);
}

#[test]
fn only_the_header_that_trusted_proxies_write_is_believed_and_passed_on() {
    let headers = [("x-forwarded-for", "203.0.113.1"), ("forwarded", "for=203.0.113.2")];
    for (setting, client, other) in [
        ("", "203.0.113.1", "203.0.113.2"),
        ("trusted_header: x-forwarded-for", "203.0.113.1", "203.0.113.2"),
        ("trusted_header: forwarded", "203.0.113.2", "203.0.113.1"),
    ] {
        let api = Api::echo();
        let rest =
            format!("trusted_proxies: [127.0.0.1]\n{setting}\nrules: [{{ id: ip, key: ip, limit: 9/h }}]");
        let server = in_front_of(&api, &rest);
        assert_eq!(Client::to(server.proxy).request("GET", "/", &headers, b"").status, 200);
        assert_eq!(server.used("ip", &format!("ip:{client}")), [1], "{setting}");
        let seen = api.last();
        for name in ["forwarded", "x-forwarded-for"] {
            let value = seen.header(name).unwrap_or_default();
            assert!(value.contains(client) && !value.contains(other), "{setting} {name}: {value}");
        }
    }
}

#[test]
fn no_spelling_of_host_path_or_method_escapes_a_rule() {
    let api = Api::saying("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let rest = "rules:
  - { id: host, match: /host, host: api.example.com, limit: 1/h }
  - { id: path, match: /a/login, limit: 1/h }
  - { id: parameter, match: '/search/{q}', limit: 1/h }
  - { id: get, match: GET /get, limit: 1/h }
  - { id: email, match: POST /email, key: 'json:email', limit: 1/h }
";
    let server = in_front_of(&api, rest);
    let raw = |request: &str| {
        let mut client = Client::to(server.proxy);
        client.write(request.as_bytes());
        client.head().status
    };
    let get = |host: &str, path: &str| raw(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
    assert_eq!(get("api.example.com", "/host"), 200);
    for host in ["API.example.com.", "api.example.com..", "api%2eexample.com", "api.example.com.:80"] {
        assert_eq!(get(host, "/host"), 429, "{host}");
    }
    let mut old = Client::to(server.proxy);
    old.write(b"GET /host HTTP/1.0\r\n\r\n");
    let line = old.line().unwrap_or_default();
    assert!(line.starts_with("HTTP/1.0 400"), "no host, where rules name hosts: {line}");
    assert_eq!(get("", "/host"), 400, "an empty host");
    assert_eq!(get("h", "/a/login"), 200);
    for path in [
        "/a/x/../login",
        "/a/%2e/login",
        "/a/b/%2E%2e/login",
        "/../a/login/.",
        "/a/b/..%2flogin",
        "//a//login",
    ] {
        assert_eq!(get("h", path), 429, "{path}");
    }
    assert_eq!(get("h", "/search/a"), 200);
    for path in
        ["/search/a%2Fb", "/search/;a", "/search/..;a", "/search/..", "/search/%5c", "//search/a%2fb/"]
    {
        assert_eq!(get("h", path), 429, "{path}: a parameter, for servers that decode it last");
    }
    assert_eq!(raw("HEAD /get HTTP/1.1\r\nhost: h\r\n\r\n"), 200);
    assert_eq!(get("h", "/get"), 429);
    assert_eq!(post(&server, "/email", br#"{"email":"Ann@Example.com"}"#), 200);
    assert_eq!(post(&server, "/email", br#"{"email":" ann@example.com"}"#), 429);
}

#[test]
fn paths_are_compared_without_their_case_where_the_file_says_so() {
    let api = Api::echo();
    let server =
        in_front_of(&api, "case_insensitive_paths: true\nrules: [{ id: a, match: /Login, limit: 1/h }]");
    let get = |path: &str| Client::to(server.proxy).request("GET", path, &[], b"").status;
    assert_eq!((get("/lOGIN"), get("/login"), get("/Login")), (200, 429, 429));
    assert_eq!(api.last().target(), "/lOGIN", "what is forwarded is as it was written");
}
