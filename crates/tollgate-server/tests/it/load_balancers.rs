//! The recipes of examples/load-balancers, each run by its one command: a real Envoy, Caddy or Traefik, three nodes that
//! share a Redis, and an API. Nodes are killed, frozen and started again under traffic.

use std::process::{Command, Stdio};
use std::thread;

use tollgate_testkit::{Answer, Server, eventually};

use crate::running_example::{Example, Failing, Node, under_traffic, went_through_tollgate};

const NODES: usize = 3;
const LIMIT: usize = 5;
const LIMITED: &str = "/limited/page";

/// What clients see until the load balancer has noticed that all nodes are gone.
#[derive(Clone, Copy, PartialEq)]
enum Notices {
    /// It tries the others, and then does what it does without nodes.
    AtOnce,
    /// It answers 502 until a health check has failed.
    ByHealthCheck,
}

impl Example {
    /// How many of `count` requests of one client pass; the others are denied.
    fn passed(&self, client: u8, count: u8, headers: impl Fn(u8) -> Vec<(&'static str, String)>) -> usize {
        let answers = (0..count).map(|n| {
            let headers = headers(n);
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            self.request(client, "GET", LIMITED, &headers)
        });
        let passes = |answer: Answer| match answer.status {
            200 => true,
            429 => false,
            _ => panic!("{answer}"),
        };
        answers.filter(|answer| passes(answer.clone())).count()
    }

    /// Whether a node has been sent something that it has not read: a local port and a receive queue of /proc/net/tcp.
    fn a_node_has_unread_bytes(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the sockets of this machine");
        let port = format!(":{:04X}", self.port);
        sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
            fields[1].ends_with(&port)
                && fields[4].split(':').nth(1).is_some_and(|unread| unread.bytes().any(|b| b != b'0'))
        })
    }

    /// Whether a request is answered with 200 soon, whatever becomes of the connection.
    fn is_quick(&self) -> bool {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "3", "--output", "/dev/null"]);
        curl.arg(format!("http://{}/", self.front)).stdout(Stdio::null()).stderr(Stdio::null());
        curl.status().is_ok_and(|status| status.success())
    }
}

#[track_caller]
fn assert_passed(answer: &Answer) {
    assert!(answer.status == 200 && went_through_tollgate(answer), "{answer}");
}

fn check_limits(example: &Example) {
    assert_eq!(example.passed(2, 9, |_| Vec::new()), LIMIT);
    let denied = example.request(2, "GET", LIMITED, &[]);
    assert_eq!(denied.status, 429, "{denied}");
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    for (name, start) in
        [("ratelimit-policy", "\"each\";q=5;w=3600"), ("ratelimit", "\"each\";r=0"), ("retry-after", "")]
    {
        assert!(denied.header(name).is_some_and(|value| value.starts_with(start)), "{name}: {denied}");
    }
    assert_passed(&example.request(2, "POST", "/", &[]));
}

/// The key is the address that the load balancer saw, whatever the client writes into forwarding headers.
fn check_client_address(example: &Example) {
    let lies = |n: u8| {
        let address = format!("203.0.113.{n}");
        vec![
            ("x-forwarded-for", address.clone()),
            ("forwarded", format!("for={address}")),
            ("x-real-ip", address),
        ]
    };
    assert_eq!(example.passed(3, 9, lies), LIMIT, "a made-up address is a client of its own");
    let blames = |_| vec![("x-forwarded-for", "127.0.0.2".to_owned())];
    assert_eq!(example.passed(4, 1, blames), 1, "a client is denied for what another has used");

    let answer = example.request(5, "GET", "/", &[("x-forwarded-for", "203.0.113.7")]);
    let chain = answer.json()["x-forwarded-for"].clone();
    assert_eq!(chain, "127.0.0.5, 127.0.0.1", "what the API receives: the client, then the load balancer");

    // A client may name headers that end at the next hop. The address of the client is none of them.
    for _ in 0..=LIMIT {
        let answer = example.request(6, "GET", LIMITED, &[("connection", "close, x-forwarded-for")]);
        assert!([200, 400, 429].contains(&answer.status), "{answer}");
        if answer.status == 200 {
            assert_eq!(answer.json()["x-forwarded-for"], "127.0.0.6, 127.0.0.1");
        }
    }
}

fn check_every_node_gone(example: &Example, failing: Failing, notices: Notices) {
    let as_wanted = |answer: &Answer| match failing {
        Failing::Open => answer.status == 200 && !went_through_tollgate(answer),
        Failing::Closed => answer.status == 503,
    };
    eventually("without nodes", || {
        let answer = example.request(2, "GET", LIMITED, &[]);
        let noticed = as_wanted(&answer);
        let may_wait = notices == Notices::ByHealthCheck && answer.status == 502;
        assert!(noticed || may_wait, "{answer}");
        noticed
    });
    for n in 0..20 {
        let answer = example.request(2, if n % 2 == 0 { "GET" } else { "POST" }, LIMITED, &[]);
        assert!(as_wanted(&answer), "{answer}");
        if failing == Failing::Open {
            assert_eq!(answer.json()["body"], if n % 2 == 0 { "" } else { "hello" });
        }
    }
}

/// A request that may have reached the API through a node is not sent again, to whatever falls in for the node. One without
/// a body: of that nothing is missing when it is sent again.
fn check_nothing_is_sent_twice(example: &Example, nodes: &[Server]) {
    let reached_a_node = || {
        eventually("all is well", || (0..12).all(|_| example.is_quick()));
        nodes.iter().for_each(Server::freeze);
        thread::scope(|scope| {
            let sent = scope.spawn(|| example.request(7, "PATCH", "/", &[]));
            let mut reached = false;
            eventually("the request is sent", || {
                reached = example.a_node_has_unread_bytes();
                reached || sent.is_finished()
            });
            if reached {
                nodes.iter().for_each(|node| node.signal("KILL"));
                let answer = sent.join().expect("an answer");
                assert!([502, 503, 504].contains(&answer.status), "{answer}");
            }
            nodes.iter().filter(|_| !reached).for_each(Server::thaw);
            reached
        })
    };
    // On a busy machine health checks may find out before the request is there.
    assert!((0..5).any(|_| reached_a_node()), "no node was sent the request");
}

fn check(balancer: &str, failing: Failing, notices: Notices) {
    let Some(example) = Example::start("load-balancers", balancer, failing, NODES) else { return };
    eventually("a request passes", || example.request(2, "GET", "/", &[]).status == 200);
    check_limits(&example);
    check_client_address(&example);

    let failed = under_traffic(&example, |more| {
        example.nodes[0].kill();
        more(200);
    });
    assert!(failed.is_empty(), "a killed node was noticed: {failed:?}");

    example.nodes[1..].iter().for_each(Node::kill);
    check_every_node_gone(&example, failing, notices);

    let nodes: Vec<_> =
        example.nodes.iter().map(|node| Server::start_at(&example.folder, &node.config)).collect();
    eventually("limited again", || example.request(2, "GET", LIMITED, &[]).status == 429);
    (0..30).for_each(|_| assert_passed(&example.request(2, "GET", "/", &[])));

    // One that accepts and never answers is found by its health check.
    nodes[0].freeze();
    eventually("a frozen node is left out", || (0..12).all(|_| example.is_quick()));
    nodes[0].thaw();
    check_nothing_is_sent_twice(&example, &nodes);
}

#[test]
fn envoy_failing_open() {
    check("envoy", Failing::Open, Notices::AtOnce);
}

#[test]
fn envoy_failing_closed() {
    check("envoy", Failing::Closed, Notices::AtOnce);
}

#[test]
fn caddy_failing_open() {
    check("caddy", Failing::Open, Notices::AtOnce);
}

#[test]
fn caddy_failing_closed() {
    check("caddy", Failing::Closed, Notices::AtOnce);
}

#[test]
fn traefik_failing_open() {
    check("traefik", Failing::Open, Notices::ByHealthCheck);
}

#[test]
fn traefik_failing_closed() {
    check("traefik", Failing::Closed, Notices::ByHealthCheck);
}
