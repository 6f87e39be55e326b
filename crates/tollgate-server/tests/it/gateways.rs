//! The examples of examples/forward-auth, each run by its one command: a real nginx, Caddy or Traefik that asks two nodes
//! about every request. Nodes are killed and started again.

use tollgate_testkit::{Answer, Server, eventually};

use crate::running_example::{Example, Failing, Node};

const NODES: usize = 2;
const LIMIT: usize = 5;
const LIMITED: &str = "/limited/page?x=1";
const BANNED_CLIENT: u8 = 66;

/// What a gateway can do beside asking.
#[derive(Clone, Copy)]
struct Gateway {
    name: &'static str,
    /// Whether a response that passes has the headers of the verdict.
    adds_headers: bool,
    /// Whether the body of a denial is Tollgate's own.
    keeps_body: bool,
    /// Statuses while a gateway that fails closed has not noticed that the nodes are gone.
    before_noticed: &'static [u16],
}

const NGINX: Gateway =
    Gateway { name: "nginx", adds_headers: true, keeps_body: false, before_noticed: &[503] };
const CADDY: Gateway =
    Gateway { name: "caddy", adds_headers: true, keeps_body: true, before_noticed: &[503] };
const TRAEFIK: Gateway =
    Gateway { name: "traefik", adds_headers: false, keeps_body: true, before_noticed: &[502, 503] };

fn check(gateway: Gateway, failing: Failing) {
    let Some(example) = Example::start("forward-auth", gateway.name, failing, NODES) else { return };
    eventually("a request passes", || example.request(2, "GET", "/", &[]).status == 200);
    check_verdicts(&example, gateway);
    check_lies(&example);

    example.nodes[0].kill();
    (0..10).for_each(|_| assert_eq!(example.request(2, "GET", "/", &[]).status, 200, "one node is left"));
    eventually("limited by the other node", || example.request(2, "GET", LIMITED, &[]).status == 429);

    example.nodes[1..].iter().for_each(Node::kill);
    check_every_node_gone(&example, gateway, failing);

    let nodes: Vec<_> =
        example.nodes.iter().map(|node| Server::start_at(&example.folder, &node.config)).collect();
    eventually("limited again", || example.request(2, "GET", LIMITED, &[]).status == 429);
    check_frozen(&example, &nodes, failing);
}

fn check_verdicts(example: &Example, gateway: Gateway) {
    let passed = example.request(2, "POST", "/free?a=b", &[]);
    assert_eq!(passed.status, 200, "{passed}");
    assert_eq!(passed.header("ratelimit").is_some(), gateway.adds_headers, "{passed}");
    let seen = passed.json();
    assert_eq!(
        (&seen["method"], &seen["path"], &seen["body"]),
        (&"POST".into(), &"/free?a=b".into(), &"hello".into())
    );

    assert_eq!(count_passed(example, 2, |_| Vec::new()), LIMIT);
    let denied = example.request(2, "GET", LIMITED, &[]);
    assert_eq!(denied.status, 429, "{denied}");
    let retry_after: u64 = denied.header("retry-after").and_then(|value| value.parse().ok()).expect("a wait");
    assert!((1..=720).contains(&retry_after), "{denied}");
    for (name, value) in [
        ("content-type", "application/problem+json"),
        ("ratelimit-policy", "\"each\";q=5;w=3600"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(denied.header(name), Some(value), "{denied}");
    }
    assert!(denied.header("ratelimit").is_some_and(|value| value.starts_with("\"each\";r=0;t=")), "{denied}");
    assert_eq!(denied.json()["status"], 429);
    let ticket = denied.header("tollgate-ticket").expect("every gateway passes it on");
    assert_eq!(denied.json()["instance"], format!("urn:tollgate:ticket:{ticket}"), "{denied}");
    assert_eq!(denied.json()["violated-policies"][0] == "each", gateway.keeps_body, "{denied}");

    let banned = example.request(BANNED_CLIENT, "GET", "/", &[]);
    assert_eq!(banned.status, 403, "{banned}");
    assert!(banned.header("retry-after").is_some(), "{banned}");
    assert!(banned.header("tollgate-ticket").is_some(), "{banned}");
}

/// What clients write into the headers that the gateway describes requests by has no effect.
fn check_lies(example: &Example) {
    let describes_another = |n: u8| {
        let address = format!("203.0.113.{n}");
        vec![
            ("x-forwarded-for", address.clone()),
            ("forwarded", format!("for={address}")),
            ("x-real-ip", address),
            ("x-forwarded-uri", "/free".to_owned()),
            ("x-original-uri", "/free".to_owned()),
            ("x-forwarded-method", "OPTIONS".to_owned()),
            ("x-forwarded-host", "elsewhere".to_owned()),
        ]
    };
    assert_eq!(count_passed(example, 3, describes_another), LIMIT);
    let names = "close, x-forwarded-for, x-forwarded-uri, x-forwarded-method, x-forwarded-host";
    let drops_headers = |_| vec![("connection", names.to_owned())];
    assert_eq!(
        count_passed(example, 4, drops_headers),
        LIMIT,
        "headers of the gateway itself are not dropped"
    );
    let blames = example.request(5, "GET", LIMITED, &[("x-forwarded-for", "127.0.0.2")]);
    assert_eq!(blames.status, 200, "a client is denied for what another has used: {blames}");
}

/// How many of nine requests pass; the others are denied.
fn count_passed(example: &Example, client: u8, headers: impl Fn(u8) -> Vec<(&'static str, String)>) -> usize {
    let answers = (0..9).map(|n| {
        let headers = headers(n);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        example.request(client, "GET", LIMITED, &headers)
    });
    let passes = |answer: Answer| match answer.status {
        200 => true,
        429 => false,
        _ => panic!("{answer}"),
    };
    answers.filter(|answer| passes(answer.clone())).count()
}

fn check_every_node_gone(example: &Example, gateway: Gateway, failing: Failing) {
    for n in 0..20 {
        let answer = example.request(2, if n % 2 == 0 { "GET" } else { "POST" }, LIMITED, &[]);
        match failing {
            Failing::Open => {
                assert_eq!(answer.status, 200, "{answer}");
                assert_eq!(answer.json()["body"], if n % 2 == 0 { "" } else { "hello" });
            }
            Failing::Closed => assert!(gateway.before_noticed.contains(&answer.status), "{answer}"),
        }
    }
    let wanted = if failing == Failing::Open { 200 } else { 503 };
    eventually("the gateway has noticed", || example.request(2, "GET", LIMITED, &[]).status == wanted);
}

/// Nodes that accept and never answer are as good as gone.
fn check_frozen(example: &Example, nodes: &[Server], failing: Failing) {
    nodes.iter().for_each(Server::freeze);
    let wanted = if failing == Failing::Open { 200 } else { 503 };
    eventually("frozen nodes are given up", || example.request(2, "GET", LIMITED, &[]).status == wanted);
    nodes.iter().for_each(Server::thaw);
    eventually("limited once they answer", || example.request(2, "GET", LIMITED, &[]).status == 429);
}

#[test]
fn nginx_failing_open() {
    check(NGINX, Failing::Open);
}

#[test]
fn nginx_failing_closed() {
    check(NGINX, Failing::Closed);
}

#[test]
fn caddy_failing_open() {
    check(CADDY, Failing::Open);
}

#[test]
fn caddy_failing_closed() {
    check(CADDY, Failing::Closed);
}

#[test]
fn traefik_failing_open() {
    check(TRAEFIK, Failing::Open);
}

#[test]
fn traefik_failing_closed() {
    check(TRAEFIK, Failing::Closed);
}
