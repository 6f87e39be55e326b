//! Identity from the body.

use crate::api::Api;
use crate::harness::{Client, Server};
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
