//! Spellings of identities that some servers read as the same client: none of them hides it or yields a fresh counter.

use tollgate_testkit::Client;

use crate::proxy::api::Api;
use crate::proxy::identity::{AMBIGUOUS, passed, post};
use crate::proxy::in_front_of;

/// A request whose body a form parser reads as one field `user` with the value `victim`, beside a number that changes.
fn form(number: usize, content_type: &str, body: &str) -> (String, String) {
    let number = number.to_string();
    (content_type.replace("NUMBER", &number), body.replace("NUMBER", &number))
}

/// A regression: what one server reads as a field and another does not was no field here, so no limit applied.
#[test]
fn no_spelling_of_a_multipart_field_hides_it() {
    const TYPE: &str = "multipart/form-data; boundary=XX";
    let part = |head: &str| format!("--XX\r\n{head}\r\n\r\nvictim\r\n--XX--\r\n");
    let field = |parameters: &str| part(&format!("Content-Disposition: form-data{parameters}"));
    let long = "x".repeat(200);
    let cases = [
        (TYPE.to_owned(), field("; name=\"user\"; filename=\"\"")),
        (TYPE.to_owned(), field("; name=\"user\"; filename=\"NUMBER\"")),
        (TYPE.to_owned(), field("; name=\"x\"; name=\"user\"")),
        (TYPE.to_owned(), field("; name=\"user\"; name=\"x\"")),
        (TYPE.to_owned(), field("; name*=UTF-8''us%65r")),
        (TYPE.to_owned(), field("; name=\"user[]\"")),
        (TYPE.to_owned(), field("; name=user[NUMBER]")),
        (TYPE.to_owned(), field("; name*0=us; name*1=er")),
        (TYPE.to_owned(), field(";\r\n name=\"user\"")),
        (TYPE.to_owned(), field("; name=user").replace("\r\n", "\n")),
        (TYPE.to_owned(), field("; name=user").replace("victim\r\n", "victim\r\n--XXNUMBER\r\n")),
        (TYPE.to_owned(), format!("--XX\r\n\r\nx\n--XX--\nx\r\n{}", field("; name=user"))),
        (
            TYPE.to_owned(),
            part("Content-Disposition: form-data; name=user\r\nContent-Transfer-Encoding: quoted-printable")
                .replace("victim", "vi=63tim"),
        ),
        (
            format!("multipart/form-data; boundary={long}"),
            field("; name=user").replace("--XX", &format!("--{long}")),
        ),
    ];
    for (content_type, body) in cases {
        let api = Api::echo();
        let server = in_front_of(&api, AMBIGUOUS);
        let send = |number: usize| {
            let (content_type, body) = form(number, &content_type, &body);
            let headers = [("content-type", content_type.as_str())];
            Client::to(server.proxy).request("POST", "/form", &headers, body.as_bytes()).status
        };
        assert_eq!(passed(send), 3, "{content_type}: {body}");
        let used = server.used("form", "form:user:victim");
        assert!(used == [3] || body.contains("name*0"), "{body}: {used:?}");
    }
}

#[test]
fn a_content_type_that_two_servers_read_differently_is_rejected() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    let send = |path: &str, types: &[&str]| {
        let headers: Vec<_> = types.iter().map(|content_type| ("content-type", *content_type)).collect();
        Client::to(server.proxy).request("POST", path, &headers, b"--XX--\r\n").status
    };
    let long = format!("multipart/form-data; boundary={}", "x".repeat(1025));
    for types in [
        &["text/plain", "multipart/form-data; boundary=XX"][..],
        &["multipart/form-data; boundary=XX", "multipart/form-data; boundary=XX"],
        &["multipart/form-data; boundary=XX; boundary=YY"],
        &["multipart/form-data; boundary=XX,YY"],
        &["multipart/form-data; xboundary=XX; boundary=YY"],
        &["text/plain, multipart/form-data; boundary=XX"],
        &[&long],
    ] {
        assert_eq!(send("/form", types), 400, "{types:?}");
    }
    assert_eq!(send("/other", &["text/plain", "text/html"]), 200, "no rule reads this body");
    for honest in [
        "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
        "multipart/form-data; boundary=\"a b\"; charset=utf-8",
        "multipart/form-data; charset=utf-8; boundary=----=_Part_1_2.3",
        "multipart/form-data",
        "application/json",
    ] {
        assert_eq!(send("/form", &[honest]), 200, "{honest}");
    }
}

/// A regression: each spelling of a session, of credentials or of a parameter had a counter of its own.
#[test]
fn no_spelling_of_a_cookie_a_credential_or_a_parameter_yields_a_fresh_counter() {
    let api = Api::echo();
    let rules = "rules:
  - { id: cookie, match: /cookie, key: 'cookie:sid', limit: 3/h }
  - { id: header, match: /header, key: 'header:authorization', limit: 3/h }
  - { id: query, match: /query, key: 'query:api_key', limit: 3/h }
  - { id: form, match: /form, key: 'form:user', limit: 3/h }
";
    let server = in_front_of(&api, rules);
    let send = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
        Client::to(server.proxy).request("POST", path, headers, body).status
    };
    let cookies = ["sid=abc", "sid=%61bc", "sid=\"abc\"", "sid=\"\\141bc\"", "sid=\"a\\bc\"", "sid=%2561bc"];
    assert_eq!(passed(|n| send("/cookie", &[("cookie", cookies[n])], b"")), 3);
    assert_eq!(server.used("cookie", "cookie:sid:abc"), [3]);
    let credentials = ["Bearer X", "bEARER X", "Bearer  X", "Bearer\tX", "Bearer \t X", "BEARER X decoy"];
    assert_eq!(passed(|n| send("/header", &[("authorization", credentials[n])], b"")), 3);
    assert_eq!(server.used("header", "header:authorization:bearer%20X"), [3]);
    assert_eq!(passed(|n| send(&format!("/query?api_key=d{n};api_key=real"), &[], b"")), 3);
    assert_eq!(passed(|n| send(&format!("/query?api_key=other;{n}"), &[], b"")), 3);
    assert_eq!(passed(|n| send("/form", &[], format!("user=d{n};user=real").as_bytes())), 3);
}

/// A regression: lenient parsers accept a comma behind the last field.
#[test]
fn a_trailing_comma_hides_no_field() {
    let api = Api::echo();
    let server = in_front_of(&api, AMBIGUOUS);
    assert_eq!(passed(|_| post(&server, "/login", br#"{"email":"victim@example.com",}"#)), 3);
}
