//! Live counts: the stream of seconds, series, top keys, activity and the latest decisions.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{Folder, Server, eventually};

const RULES: &str = "rules: [{ id: login, match: POST /login, key: ip, limit: 3/h }, { id: api, key: api_key, limit: 100/h, \
                     missing_key: skip }]";

/// An open stream of `/v1/live`.
struct Stream(BufReader<TcpStream>);

#[derive(Debug)]
struct Event {
    id: Option<u64>,
    name: String,
    data: Value,
}

impl Stream {
    fn open(server: &Server, last: Option<u64>) -> Stream {
        let mut socket = TcpStream::connect(server.admin).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let resume = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
        write!(socket, "GET /v1/live HTTP/1.1\r\nHost: {}\r\n{resume}\r\n", server.admin).expect("sent");
        let mut stream = Stream(BufReader::new(socket));
        assert!(stream.line().contains("200"), "the stream is open");
        while !stream.line().is_empty() {}
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<Event> {
        let mut event = Event { id: None, name: String::new(), data: Value::Null };
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("id", id)) => event.id = id.parse().ok(),
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).expect("JSON"),
                // Sizes of chunks and empty lines; the last chunk has the size 0.
                _ if line == "0" => return None,
                _ if !event.name.is_empty() && line.is_empty() => return Some(event),
                _ => {}
            }
        }
    }

    fn next_with(&mut self, is_it: impl Fn(&Value) -> bool) -> Event {
        for _ in 0..60 {
            let event = self.next().expect("the stream goes on");
            if is_it(&event.data) {
                return event;
            }
        }
        panic!("not within a minute");
    }
}

fn attack(server: &Server, requests: usize) {
    for _ in 0..requests {
        server.check(&json!({ "method": "POST", "path": "/login", "ip": "192.0.2.1" }));
    }
}

#[test]
fn a_second_with_denials_is_streamed_and_replayed_after_a_lost_connection() {
    let server = Server::start(RULES);
    let mut stream = Stream::open(&server, None);
    let first = stream.next().expect("a second");
    assert_eq!(
        (&*first.name, &first.data["status"], &first.data["enforce"]),
        ("second", &json!("ok"), &json!("on"))
    );
    attack(&server, 8);
    let denied = |data: &Value| data["denied"].as_u64() > Some(0);
    let event = stream.next_with(denied);
    assert_eq!(event.id, event.data["at"].as_u64());
    assert_eq!(
        (&event.data["clients_limited"], &event.data["rules"][0]["rule"]),
        (&json!(1), &json!("login"))
    );
    assert_eq!(event.data["decisions"][0]["key"], "ip:192.0.2.1");
    drop(stream);
    let mut again = Stream::open(&server, first.id);
    let replayed = again.next_with(denied);
    assert_eq!((replayed.id, &replayed.data["denied"]), (event.id, &event.data["denied"]));
}

#[test]
fn a_stream_ends_when_the_node_stops() {
    let server = Server::start(RULES);
    let mut stream = Stream::open(&server, None);
    stream.next().expect("a second");
    server.signal("TERM");
    let mut last = None;
    while let Some(event) = stream.next() {
        last = Some(event);
    }
    let last = last.expect("a last event");
    assert_eq!((&*last.name, &last.data["reason"]), ("end", &json!("the node is stopping")));
    let (status, _) = server.stop();
    assert!(status.success(), "it does not wait for the stream");
}

#[test]
fn streams_are_bounded_and_closed_ones_make_room() {
    let server = Server::start(RULES);
    let mut streams: Vec<_> = (0..64).map(|_| Stream::open(&server, None)).collect();
    let refused = server.admin("GET", "/v1/live", "");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("64 streams are open already"), "{}", refused.text());
    let silent = streams.pop().expect("a stream"); // never read
    streams.clear();
    eventually("there is room", || {
        let mut socket = TcpStream::connect(server.admin).expect("a connection");
        write!(socket, "GET /v1/live HTTP/1.1\r\nHost: {}\r\n\r\n", server.admin).expect("sent");
        let mut start = [0; 12];
        socket.read_exact(&mut start).expect("a response");
        &start == b"HTTP/1.1 200"
    });
    drop(silent);
    let unknown = server.admin("GET", "/v1/live?scope=fleet", "");
    assert!(unknown.text().contains("unknown parameter 'scope': there are no parameters"), "{unknown}");
    for wrong in ["x", "-1"] {
        let mut client = tollgate_testkit::Client::to(server.admin);
        assert_eq!(client.request("GET", "/v1/live", &[("last-event-id", wrong)], b"").status, 400);
    }
}

#[test]
fn top_keys_have_bounds_and_credentials_are_masked() {
    let server = Server::start(RULES);
    attack(&server, 10);
    for _ in 0..5 {
        server.check(&json!({ "path": "/", "api_key": "sk-secret", "ip": "192.0.2.7" }));
    }
    let top = server.admin("GET", "/v1/top?outcome=denied&window=1m", "").json();
    assert_eq!(top["keys"], json!([{ "rule": "login", "key": "ip:192.0.2.1", "count": 7, "error": 0 }]));
    assert_eq!(top["nodes"]["missing"], json!([]));
    let allowed = server.admin("GET", "/v1/top?outcome=allowed&window=1h&rule=api", "");
    let keys = allowed.json();
    let key = keys["keys"][0]["key"].as_str().expect("a key");
    assert!(key.starts_with("api_key:#") && !allowed.text().contains("sk-secret"), "{key}");
    assert_eq!(keys["keys"][0]["count"], 5);
    assert_eq!(
        server.admin("GET", "/v1/top?outcome=near&window=5m&limit=1", "").json()["keys"][0]["rule"],
        "login"
    );
    for wrong in ["outcome=x", "window=2m", "limit=0", "x=1"] {
        assert_eq!(server.admin("GET", &format!("/v1/top?{wrong}"), "").status, 400, "{wrong}");
    }
}

#[test]
fn plain_keys_are_shown_where_the_configuration_says_so() {
    let server = Server::start(&format!("log_keys: plain\n{RULES}"));
    server.check(&json!({ "path": "/", "api_key": "sk-public" }));
    let top = server.admin("GET", "/v1/top?outcome=allowed", "").json();
    assert_eq!(top["keys"][0]["key"], "api_key:sk-public");
}

#[test]
fn series_activity_and_decisions_agree() {
    let server = Server::start(RULES);
    attack(&server, 8);
    let minutes = server.admin("GET", "/v1/series?step=minute&rule=login", "").json();
    assert_eq!((&minutes["step"], &minutes["rule"]), (&json!(60), &json!("login")));
    let sum = |series: &Value, field: &str| -> u64 {
        series["points"].as_array().expect("points").iter().filter_map(|point| point[field].as_u64()).sum()
    };
    eventually("the second is complete", || {
        let seconds = server.admin("GET", "/v1/series", "").json();
        (sum(&seconds, "allowed"), sum(&seconds, "denied")) == (3, 5)
    });
    for query in ["step=minute", "step=hour", "step=minute&rule=login"] {
        let series = server.admin("GET", &format!("/v1/series?{query}"), "").json();
        assert_eq!((sum(&series, "allowed"), sum(&series, "denied")), (3, 5), "{query}");
        assert_eq!(sum(&series, "clients_limited"), 1, "{query}");
    }
    let activity = server.admin("GET", "/v1/activity", "").json();
    let login = &activity["rules"][0];
    assert_eq!(
        (&login["rule"], &login["denied"], &login["clients_limited"]),
        (&json!("login"), &json!(5), &json!(1))
    );
    assert_eq!(
        (login["headroom"].as_array().map(Vec::len), login["recent"].as_array().map(Vec::len)),
        (Some(10), Some(60))
    );
    let denied = server.admin("GET", "/v1/decisions?outcome=denied&rule=login&key=ip:192.0.2.1", "").json();
    let first = &denied["decisions"][0];
    assert_eq!((&first["allowed"], &first["reason"]), (&json!(false), &json!("limit")));
    assert_eq!([&first["limit"], &first["used"], &first["cost"]], [&json!("3/h"), &json!(3), &json!(1)]);
    assert_eq!(server.admin("GET", "/v1/series?rule=none", "").status, 404);
    assert_eq!(server.admin("GET", "/v1/series?from=x", "").status, 400);
}

/// Automatic bans filled the list of changes, and an edit before them was no longer marked in the chart.
#[test]
fn an_edit_is_marked_behind_many_bans_and_an_import() {
    let ban = "{ id: strict, match: /strict, key: user, limit: 1/d, ban: { key: [user], after: 1, within: 1h, for: 1h } }";
    let server = Server::start(&format!("rules: [{ban}]"));
    let edit = json!({ "match": "/edited", "limit": "5/m" }).to_string();
    assert_eq!(server.admin("PUT", "/v1/rules/edited", edit).status, 201);
    for n in 0..120 {
        for _ in 0..2 {
            server.check(&json!({ "path": "/strict", "user": format!("user-{n}") }));
        }
    }
    let bans =
        || server.admin("GET", "/v1/bans?limit=1000", "").json()["bans"].as_array().map_or(0, Vec::len);
    eventually("all are banned", || bans() == 120);
    let rules: String = (0..200).map(|n| format!("- {{ id: r{n}, match: /r{n}, limit: 5/m }}\n")).collect();
    assert_eq!(server.admin("POST", "/v1/rules/import", &rules).status, 200);
    let log =
        || server.admin("GET", "/v1/audit?limit=1000", "").json()["changes"].as_array().map_or(0, Vec::len);
    eventually("everything is in the log", || log() == 122);
    let series = server.admin("GET", "/v1/series?step=minute", "").json();
    let actions: Vec<_> = series["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(|change| change["action"].clone())
        .collect();
    assert_eq!(actions, ["rule edited set by local", "200 changes by local"], "{series}");
}

#[test]
fn other_rules_are_tried_on_the_requests_of_the_last_minutes() {
    let server = Server::start(RULES);
    attack(&server, 8);
    server.check(&json!({ "method": "POST", "path": "/login", "ip": "192.0.2.2" }));
    let simulate = |rules: &str| {
        server.admin("POST", "/v1/simulate", json!({ "rules": rules, "sample": "live" }).to_string())
    };
    let tried = simulate("- { id: login, match: POST /login, key: ip, limit: 6/h }").json();
    assert_eq!(
        (&tried["requests"], &tried["denied"], &tried["sampled_one_in"]),
        (&json!(9), &json!(2), &json!(1))
    );
    assert_eq!(tried["by_rule"], json!([{ "rule": "login", "requests": 9, "denied": 2, "clients": 1 }]));
    assert_eq!(tried["clients"][0], json!({ "key": "ip:192.0.2.1", "requests": 8, "denied": 2 }));
    assert_eq!(
        (&tried["compare"]["denied"], &tried["compare"]["by_rule"][0]["denied"]),
        (&json!(5), &json!(5))
    );
    let whole = simulate("rules: [{ id: login, match: POST /login, key: ip, limit: 1/h }]").json();
    assert_eq!(whole["denied"], 7);
    assert_eq!(server.admin("GET", "/v1/rules/login", "").json()["limits"], json!(["3/h"]));
    assert_eq!(
        server.admin("GET", "/v1/activity?rule=login", "").json()["rules"][0]["allowed"],
        4,
        "nothing is counted"
    );
    for wrong in ["- { id: x }", "rules: ["] {
        assert_eq!(simulate(wrong).status, 400, "{wrong}");
    }
    assert_eq!(server.admin("POST", "/v1/simulate", r#"{"rules":"","sample":"x"}"#).status, 400);
}

#[test]
fn minutes_and_hours_survive_a_restart() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    attack(&server, 8);
    assert!(server.stop().0.success());
    let server = Server::start_in(&folder);
    attack(&server, 2);
    let count = |query: &str, field: &str| -> u64 {
        let series = server.admin("GET", &format!("/v1/series?{query}"), "").json();
        series["points"].as_array().expect("points").iter().filter_map(|point| point[field].as_u64()).sum()
    };
    for query in ["step=minute", "step=hour", "step=minute&rule=login", "step=hour&rule=login"] {
        eventually(query, || (count(query, "allowed"), count(query, "denied")) == (3, 7));
    }
    assert_eq!(count("step=minute&to=1000", "denied"), 0);
}
