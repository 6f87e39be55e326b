//! Identity from the body.

use crate::api::Api;
use crate::harness::{Client, Server, run};
use crate::in_front_of;

const LOGIN: &str = "identity: { email: json:email }
rules:
  - { id: login, match: POST /login, key: email, limit: 1/h }
  - { id: form, match: POST /form, key: 'form:user', limit: 1/h }
";

fn post(server: &Server, path: &str, body: &[u8]) -> u16 {
    Client::to(server.proxy).ask("POST", path, &[], body).status
}

#[test]
fn logins_are_counted_by_the_email_in_their_json() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    assert_eq!(post(&server, "/login", br#"{"password":"x","email":"Ann@Example.com "}"#), 200);
    assert_eq!(post(&server, "/login", br#"{ "email" : "ann@example.com" }"#), 429);
    assert_eq!(post(&server, "/login", br#"{"email":"bob@example.com"}"#), 200);
    assert_eq!(post(&server, "/login", br#"{"email":"decoy","email":"ann@example.com"}"#), 429);
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
        let answer = Client::to(server.proxy).ask("POST", "/form", &headers, body.as_bytes());
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
    crate::harness::eventually("it is charged", || server.used("form", "form:user:ann") == [1]);
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
    let answer = Client::to(server.proxy).ask("POST", "/login", &[], body.as_bytes());
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
    crate::harness::eventually("it is charged", || server.used("login", "email:ann@example.com") == [1]);
    client.write(b"3\r\n   \r\n0\r\n\r\n");
    assert_eq!(client.answer().text(), "{\"email\":\"ann@example.com\"}   ");
}

#[test]
fn nobodys_body_is_read_for_a_rule_about_something_else() {
    let api = Api::echo();
    let server = in_front_of(&api, LOGIN);
    let mut client = Client::to(server.proxy);
    client.write(b"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(client.line().as_deref(), Some("HTTP/1.1 100 Continue"));
    client.line();
    client.write(b"body");
    assert_eq!(client.answer().text(), "body");
}
