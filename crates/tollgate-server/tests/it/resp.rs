//! The Redis protocol, from outside, as raw bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Folder, Server};

/// A client that sends bytes and reads the replies to them.
pub struct RespClient(TcpStream);

impl RespClient {
    pub fn to(address: SocketAddr) -> RespClient {
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        RespClient(stream)
    }

    /// Sends a command; returns its reply, which has as many bytes as `expected`.
    fn expect(&mut self, command: &str, expected: &str) {
        self.0.write_all(&frame(command)).expect("the server reads");
        let mut reply = vec![0; expected.len()];
        self.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{command}");
    }

    /// Sends commands; their replies are as expected.
    pub fn exchange(&mut self, commands: &[u8], expected: &str) {
        let replies = self.exchange_until(commands, |replies| replies.len() >= expected.len());
        assert_eq!(replies, expected);
    }

    /// Sends commands and reads their replies until they are complete.
    pub fn exchange_until(&mut self, commands: &[u8], are_complete: impl Fn(&str) -> bool) -> String {
        self.0.write_all(commands).expect("the server reads");
        let mut replies = String::new();
        let mut buffer = [0; 4096];
        while !are_complete(&replies) {
            let count = self.0.read(&mut buffer).expect("a reply");
            assert!(count > 0, "{replies}");
            replies.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
        }
        replies
    }

    /// Sends bytes and no more; returns everything up to the end of the connection.
    fn send_all(mut self, bytes: &[u8]) -> String {
        self.0.write_all(bytes).ok(); // the server may have closed it
        self.0.shutdown(Shutdown::Write).ok();
        let mut replies = Vec::new();
        self.0.read_to_end(&mut replies).ok();
        String::from_utf8_lossy(&replies).into_owned()
    }
}

/// A command as an array of its words.
pub fn frame(command: &str) -> Vec<u8> {
    let words: Vec<_> = command.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    bytes.into_bytes()
}

/// The reply of `CL.THROTTLE`.
pub fn throttled(numbers: [i64; 5]) -> String {
    let numbers: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{numbers}")
}

#[test]
fn throttle_answers_as_redis_cell_does() {
    let server = Server::start("rules: []");
    let mut client = RespClient::to(server.resp);
    client.expect("CL.THROTTLE fresh 15 30 60 0", &throttled([0, 16, 16, -1, 0]));
    client.expect("cl.throttle user 15 30 60 16", &throttled([0, 16, 0, -1, 32]));
    client.expect("CL.THROTTLE user 15 30 60 0", &throttled([0, 16, 0, -1, 32]));
    client.expect("CL.THROTTLE user 15 30 60", &throttled([1, 16, 0, 2, 32]));
    client.expect("CL.THROTTLE user 5 30 60 7", &throttled([1, 6, 0, -1, 32]));
    client.expect("CL.THROTTLE large 5 30 60 7", &throttled([1, 6, 6, -1, 0]));
    // One state whatever the figures: 32 seconds are a third of a capacity of 96.
    client.expect("CL.THROTTLE user 15 10 60 1", &throttled([0, 16, 9, -1, 38]));
    // A peek with figures whose capacity is exceeded is limited: 38 seconds of 6.
    client.expect("CL.THROTTLE user 2 30 60 0", &throttled([1, 3, 0, 32, 38]));
    client.expect("SELECT 1", "+OK\r\n");
    client.expect("CL.THROTTLE user 15 30 60 0", &throttled([0, 16, 16, -1, 0]));
    client.expect("SELECT 0", "+OK\r\n");
    client.expect("UNLINK none", ":0\r\n");
    client.expect("UNLINK user fresh none", ":1\r\n");
    client.expect("CL.THROTTLE user 15 30 60 16", &throttled([0, 16, 0, -1, 32]));
    client.expect("DEL user fresh none", ":1\r\n");
    client.expect("CL.THROTTLE user 15 30 60 0", &throttled([0, 16, 16, -1, 0]));
}

#[test]
fn bad_arguments_are_named_and_the_connection_goes_on() {
    let server = Server::start("rules: []");
    let mut client = RespClient::to(server.resp);
    for (command, error) in [
        (
            "CL.THROTTLE a 1 1",
            "wrong number of arguments: use CL.THROTTLE key max_burst count_per_period period_seconds [quantity]",
        ),
        ("CL.THROTTLE a x 1 1", "max_burst is not an integer: x"),
        ("CL.THROTTLE a 1 0 1", "count_per_period is out of range: 0"),
        ("CL.THROTTLE a 1 1 0", "period is out of range: 0"),
        ("CL.THROTTLE a 1 1 1 -1", "quantity is out of range: -1"),
        ("CL.THROTTLE a 1 1 9999999999999", "period is out of range: 9999999999999"),
        (
            "TOLLGATE.CHECK",
            "wrong number of arguments: use TOLLGATE.CHECK name value [name value ...] [COST n] [PEEK] [FULL]",
        ),
        (
            "TOLLGATE.CHECK user",
            "user has no value: use TOLLGATE.CHECK name value [name value ...] [COST n] [PEEK] [FULL]",
        ),
        (
            "TOLLGATE.CHECK user a tenant",
            "tenant has no value: use TOLLGATE.CHECK name value [name value ...] [COST n] [PEEK] [FULL]",
        ),
        ("TOLLGATE.CHECK ip 1.2.3", "ip is not valid: 1.2.3"),
        ("TOLLGATE.CHECK user a COST x", "COST is not valid: x"),
        ("TOLLGATE.CHECK path /a path /b", "path is given twice"),
        ("TOLLGATE.CHECK user ann user bob", "user is given twice"),
        ("TOLLGATE.CHECK ip 10.0.0.1 user ann ip 10.0.0.2", "ip is given twice"),
        ("TOLLGATE.CHECK domain a domain b", "domain is given twice"),
        ("GETSET a b", "unknown command 'GETSET'"),
        ("ECHO", "wrong number of arguments for 'echo' command"),
        ("UNLINK", "wrong number of arguments for 'unlink' command"),
        ("CLIENT KILL", "unknown subcommand 'KILL' of 'client'"),
        ("SELECT 16", "DB index is out of range"),
        ("AUTH x", "AUTH <password> called without any password configured: no token has the role check"),
    ] {
        client.expect(command, &format!("-ERR {error}\r\n"));
    }
    client.expect("PING", "+PONG\r\n");
}

#[test]
fn rules_decide_checks_in_six_elements() {
    let server = Server::start(
        "rules:
  - { id: login, match: POST /login, key: user, limit: 2/h, burst: 1 }
  - { id: tenant, key: 'attr:tenant', limit: 5/h }
",
    );
    let mut client = RespClient::to(server.resp);
    let check = "TOLLGATE.CHECK method POST path /login user ann";
    client.expect(&format!("{check} PEEK"), "*6\r\n:0\r\n$5\r\nlogin\r\n$3\r\n2/h\r\n:1\r\n:-1\r\n:");
    let mut client = RespClient::to(server.resp);
    client.expect(check, "*6\r\n:0\r\n$5\r\nlogin\r\n$3\r\n2/h\r\n:0\r\n:-1\r\n:");
    let mut client = RespClient::to(server.resp);
    client.expect(check, "*6\r\n:1\r\n$5\r\nlogin\r\n$3\r\n2/h\r\n:0\r\n:1");
    let mut client = RespClient::to(server.resp);
    client.expect("TOLLGATE.CHECK user bob", "*6\r\n:0\r\n$-1\r\n$-1\r\n$-1\r\n:-1\r\n$-1\r\n");
    // A name that is no field of the decision API is an attribute.
    client.expect(
        "TOLLGATE.CHECK tenant x COST 9",
        "*6\r\n:1\r\n$6\r\ntenant\r\n$3\r\n5/h\r\n:5\r\n:-1\r\n:0\r\n",
    );
    client.expect("TOLLGATE.CHECK heder:x y", "-ERR ");
    assert_eq!(server.used("login", "user:ann"), [1]);
}

#[test]
fn a_full_reply_is_a_map_in_both_versions_of_the_protocol() {
    let server = Server::start("rules: [{ id: login, match: POST /login, key: user, limit: 2/h, burst: 1 }]");
    let mut client = RespClient::to(server.resp);
    let check = "TOLLGATE.CHECK method POST path /login user ann FULL";
    let head = "*20\r\n$7\r\nallowed\r\n:1\r\n$6\r\nreason\r\n$2\r\nok\r\n$4\r\nrule\r\n$5\r\nlogin\r\n$5\r\nlimit\r\n$3\r\n2/h\r\n$9\r\nremaining\r\n:";
    client.expect(check, &format!("{head}0\r\n"));
    let mut client = RespClient::to(server.resp);
    client.0.write_all(&frame("HELLO 3")).expect("it reads");
    client.0.write_all(&frame(check)).expect("it reads");
    client.0.write_all(&frame("QUIT")).expect("it reads");
    let mut replies = String::new();
    client.0.read_to_string(&mut replies).expect("the replies");
    let denied = "%10\r\n$7\r\nallowed\r\n#f\r\n$6\r\nreason\r\n$5\r\nlimit\r\n";
    assert!(replies.starts_with("%7\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n"), "{replies}");
    assert!(replies.contains("$6\r\nticket\r\n$1"), "a ticket of a hundred bytes or more: {replies}");
    assert!(replies.contains(denied) && replies.ends_with("+OK\r\n"), "{replies}");
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = Server::start("rules: [{ id: all, limit: 3/d }]");
    let mut pipeline = Vec::new();
    for n in 0..1_000 {
        pipeline.extend(frame(&format!("ECHO {n}")));
        pipeline.extend(frame("CL.THROTTLE hot 99 100 86400"));
        pipeline.extend(b"ping\r\n");
    }
    pipeline.extend(frame("CL.THROTTLE hot 99 100 86400 0"));
    let replies = RespClient::to(server.resp).send_all(&pipeline);
    let mut rest = replies.as_str();
    for n in 0..1_000usize {
        let text = n.to_string();
        rest = rest
            .strip_prefix(&format!("${}\r\n{text}\r\n*5\r\n:{}\r\n", text.len(), i64::from(n >= 100)))
            .expect("in order");
        rest = rest.split_once("+PONG\r\n").expect("the ping's reply").1;
    }
    assert!(rest.starts_with("*5\r\n:0\r\n:100\r\n:0\r\n"), "{rest}");
}

#[test]
fn a_broken_client_is_told_why_and_others_go_on() {
    let server = Server::start("rules: []");
    let mut other = RespClient::to(server.resp);
    other.0.write_all(b"*1\r\n$4\r\nPI").expect("half a command");
    for (bytes, error) in [
        (&b"*1\r\n$1073741824\r\n"[..], "Protocol error: an argument has at most 65536 bytes"),
        (b"*1000000\r\n", "Protocol error: a command has at most 1024 arguments"),
        (b"*1\r\n*1\r\n*1\r\n", "Protocol error: expected '$', got '*'"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nCL.THROTTLE a 1 1 1\r\n",
            "Protocol error: this is an HTTP request",
        ),
    ] {
        let reply = RespClient::to(server.resp).send_all(bytes);
        assert!(reply.starts_with(&format!("-ERR {error}")) && reply.ends_with("\r\n"), "{reply}");
        assert_eq!(reply.matches("\r\n").count(), 1, "nothing is run after it: {reply}");
    }
    other.0.write_all(b"NG\r\n").expect("the other half");
    let mut reply = [0; 7];
    other.0.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"+PONG\r\n");
}

/// A regression: the socket was closed with unread input, so that the kernel reset the connection and discarded the error.
#[test]
fn a_client_that_goes_on_sending_after_its_mistake_can_read_the_error() {
    let server = Server::start("rules: []");
    for (mistake, expected) in [
        (&b"*1\r\n$1073741824\r\n"[..], "-ERR Protocol error: an argument has at most 65536 bytes\r\n"),
        (b"*1\r\n$4\r\nQUIT\r\n", "+OK\r\n"),
    ] {
        let mut client = RespClient::to(server.resp);
        client.0.write_all(mistake).expect("it reads");
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..8 {
            client.0.write_all(&chunk).expect("it is still read");
        }
        client.0.shutdown(Shutdown::Write).expect("a socket");
        let mut reply = String::new();
        client.0.read_to_string(&mut reply).expect("the reply, and no reset");
        assert_eq!(reply, expected);
    }
}

#[test]
fn a_token_is_required_once_one_has_the_role_check() {
    let folder = Folder::new();
    folder.write("tokens", "check a-secret-of-the-callers app\nread a-secret-of-the-readers\n");
    Command::new("chmod").arg("600").arg(folder.path("tokens")).status().expect("chmod runs");
    folder.configure("tokens_file: tokens\nrules: []\n");
    let server = Server::start_in(&folder);
    let mut client = RespClient::to(server.resp);
    let refused = "-NOAUTH Authentication required.\r\n";
    client.expect("PING", refused);
    client.expect("CL.THROTTLE a 1 1 1", refused);
    client.expect("TOLLGATE.CHECK user a", refused);
    client.expect("DEL a", refused);
    let wrong = "-WRONGPASS invalid token: AUTH expects a token of the role check\r\n";
    client.expect("AUTH wrong", wrong);
    client.expect("AUTH a-secret-of-the-readers", wrong);
    client.expect("AUTH default a-secret-of-the-callers", "+OK\r\n");
    client.expect("AUTH wrong", wrong);
    client.expect("HELLO 2 AUTH default wrong", wrong);
    client.expect("CL.THROTTLE a 0 1 60", &throttled([0, 1, 0, -1, 60]));
    client.expect("RESET", "+RESET\r\n");
    client.expect("PING", refused);
    assert!(!server.log().contains("a-secret"), "secrets are not logged");
    server.wait_for_log("AUTH refused");
}

#[test]
fn throttles_are_counted_in_the_central_store() {
    let Some(redis) = Redis::start(Make::Redis, "CL.THROTTLE on Redis") else { return };
    let Some(memcached) = Memcached::start("CL.THROTTLE on Memcached") else { return };
    for url in [redis.url(), memcached.url()] {
        let nodes: Vec<_> = (0..2)
            .map(|_| {
                Server::start(&format!(
                    "counters: {url}\nstore_deadline: 5s\non_store_error: closed\nrules: []"
                ))
            })
            .collect();
        let mut clients: Vec<_> = nodes.iter().map(|node| RespClient::to(node.resp)).collect();
        clients[0].expect("CL.THROTTLE shared 9 10 864000 4", &throttled([0, 10, 6, -1, 345_600]));
        clients[1].expect("CL.THROTTLE shared 9 10 864000 6", &throttled([0, 10, 0, -1, 864_000]));
        clients[0].expect("CL.THROTTLE shared 9 10 864000", &throttled([1, 10, 0, 86_400, 864_000]));
        // Under a tenth of the rate the same state is a tenth used.
        clients[1].expect("CL.THROTTLE shared 9 10 8640000 9", &throttled([0, 10, 0, -1, 8_640_000]));
        clients[0].expect("DEL shared", ":1\r\n");
        clients[1].expect("CL.THROTTLE shared 9 10 864000 0", &throttled([0, 10, 10, -1, 0]));
    }
}
