//! Heads and bodies of requests.

use tollgate_server::testing::http::{batch_len, is_check, plain_bodies};
use tollgate_server::testing::proxy::{Completeness, form_fields, forwarded_headers, heads, json_fields};

use super::{Case, Work, case, fill, numbered, work};

pub(super) const CASES: &[Case] = &[
    case("heads: pipelined requests", LARGE, |size| {
        framed(fill("GET / HTTP/1.1\r\nhost: x\r\n\r\n", size), 1 << 10)
    }),
    case("heads: a body full of heads", LARGE, |size| {
        framed(chunk(&fill("POST / HTTP/1.1\r\n\r\n", size)), 64)
    }),
    case("heads: one header line, byte by byte", LARGE, |size| {
        framed(format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", fill("x", size)), 1)
    }),
    case("heads: empty lines", LARGE, |size| framed(fill("\r\n", size), 7)),
    case("heads: one-byte chunks", LARGE, |size| framed(format!("{CHUNKED}{}", fill("1\r\nx\r\n", size)), 1)),
    case("heads: chunk extensions and trailers", LARGE, |size| {
        framed(format!("{CHUNKED}1;{}\r\nx\r\n0\r\n{}\r\n", fill("a=b;", size), fill("a: b\r\n", size)), 9)
    }),
    case("json: nested lists", LARGE, |size| json(format!("{{\"a\":{}", fill("[", size)))),
    case("json: nested objects", LARGE, |size| json(fill("{\"email\":", size))),
    case("json: nested objects on the path", LARGE, |size| json(fill("{\"user\":{\"name\":", size))),
    case("json: many fields", LARGE, |size| {
        json(format!("{{{}", numbered(size, |n| format!("\"k{n}\":{n},"))))
    }),
    case("json: many values", LARGE, |size| {
        json(format!("{{{}", numbered(size, |n| format!("\"email\":\"{n}\","))))
    }),
    case("json: the same value", LARGE, |size| json(format!("{{{}", fill("\"email\":1,", size)))),
    case("json: a list of large numbers", LARGE, |size| {
        json(format!("{{\"email\":[{}", numbered(size, |n| format!("1.{n}e300,"))))
    }),
    case("json: one long number", LARGE, |size| json(format!("{{\"email\":{}}}", fill("9", size)))),
    case("json: commas behind the last value", LARGE, |size| {
        json(format!("{{{}", fill("\"email\":[1,],", size)))
    }),
    case("json: escapes", LARGE, |size| json(format!("{{\"email\":\"{}\"}}", fill("\\ud800\\\\", size)))),
    case("json: quotes that do not close", LARGE, |size| json(format!("{{\"a\":\"{}", fill("\\\"", size)))),
    case("json: white space", LARGE, |size| json(fill(" ", size) + "{}")),
    case("form: many pairs", LARGE, |size| form("", numbered(size, |n| format!("email={n}&")))),
    case("form: semicolons", LARGE, |size| form("", numbered(size, |n| format!("email={n};")))),
    case("form: semicolons in one value", LARGE, |size| form("", format!("email=a{}&a=1", fill(";a", size)))),
    case("form: escapes", LARGE, |size| form("", format!("email={}&", fill("%ff%zz+", size)))),
    case("form: names that differ at the end", LARGE, |size| form("", fill("emai%6C%6C&", size))),
    case("multipart: many parts", LARGE, |size| {
        form(FORM, fill("\r\n--XX\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\na", size))
    }),
    case("multipart: delimiters that are none", LARGE, |size| form(FORM, fill("\r\n--XX", size))),
    case("multipart: delimiters with text behind them", LARGE, |size| {
        form(FORM, format!("--XX\r\n{EMAIL_HEAD}{}\r\n--XX--", fill("\r\n--XXa", size)))
    }),
    case("multipart: parts without CR", LARGE, |size| {
        form(FORM, fill("\n--XX\nContent-Disposition: form-data; name=\"email\"\n\na", size))
    }),
    case("multipart: line breaks of every kind", LARGE, |size| {
        form(FORM, format!("--XX\r\n{EMAIL_HEAD}{}\r\n--XX--", fill("\r\n\n\r", size)))
    }),
    case("multipart: lines that begin like a long boundary", LARGE, |size| {
        let boundary = "x".repeat(1000);
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let body = fill(&format!("\n--{}y", &boundary[1..]), size);
        work(body, move |body| form_fields(&content_type, body.as_bytes(), "email", Completeness::Truncated))
    }),
    case("multipart: folded header lines", LARGE, |size| {
        let head = format!("Content-Disposition: form-data;{} name=email", fill("\r\n\ta;", size));
        form(FORM, format!("--XX\r\n{head}\r\n\r\na\r\n--XX--"))
    }),
    case("multipart: names", LARGE, |size| {
        let head = format!("Content-Disposition: form-data;{}", fill("name=", size));
        form(FORM, format!("--XX\r\n{head}\r\n\r\na\r\n--XX--"))
    }),
    case("multipart: names in quotes that do not close", LARGE, |size| {
        let head = format!("Content-Disposition: form-data;{}", fill("name='\\", size));
        form(FORM, format!("--XX\r\n{head}\r\n\r\na\r\n--XX--"))
    }),
    case("multipart: content dispositions", LARGE, |size| {
        let head = fill("Content-Disposition: form-data; name=a\r\n", size);
        form(FORM, format!("--XX\r\n{head}\r\na\r\n--XX--"))
    }),
    case("multipart: quoted-printable", LARGE, |size| {
        let head = "Content-Transfer-Encoding: quoted-printable base64\r\nContent-Disposition: form-data; name=email";
        form(FORM, format!("--XX\r\n{head}\r\n\r\n{}\r\n--XX--", fill("=3D=\r\n=", size)))
    }),
    case("multipart: padding behind delimiters", LARGE, |size| {
        form(FORM, format!("\r\n--XX{}\r\n--XX", fill(" ", size)))
    }),
    case("multipart: parameters", LARGE, |size| {
        form(
            FORM,
            format!(
                "--XX\r\nContent-Disposition: form-data{}\r\n\r\na\r\n--XX--",
                fill("; a=\"\\\\\"", size)
            ),
        )
    }),
    case("multipart: header lines", LARGE, |size| {
        form(FORM, format!("--XX\r\n{}\r\n\r\na\r\n--XX--", fill("a: b\r\n", size)))
    }),
    case("multipart: a content type of parameters", SMALL, |size| {
        let content_type = format!("multipart/form-data{}; boundary=XX", fill("; a=\"b\"", size));
        work(content_type, |content_type| {
            form_fields(content_type, b"--XX--", "email", Completeness::Complete)
        })
    }),
    case("multipart: boundaries in a content type", SMALL, |size| {
        let content_type = format!("multipart/form-data{}", fill("; boundary=XX", size));
        work(content_type, |content_type| {
            form_fields(content_type, b"--XX--", "email", Completeness::Complete)
        })
    }),
    case("headers: names in Connection", SMALL, |size| {
        headers("connection", numbered(size, |n| format!("x-{n}, ")))
    }),
    case("headers: many of one name", SMALL, |size| {
        let lines = vec![("x_api_key".to_owned(), "1".to_owned()); size / 10];
        work(lines, screened)
    }),
    case("headers: many names with underscores", SMALL, |size| {
        work((0..size / 10).map(|n| (format!("x_{n}"), "1".to_owned())).collect(), screened)
    }),
    case("headers: forwarded elements", SMALL, |size| {
        headers("forwarded", fill("for=10.0.0.1;proto=http, ", size))
    }),
    case("headers: forwarded quotes", SMALL, |size| headers("forwarded", fill("\\\"", size))),
    case("headers: forwarded backslashes", SMALL, |size| headers("forwarded", fill("\\", size) + "\"")),
    case("headers: forwarded parameters", SMALL, |size| headers("forwarded", fill("a=b;", size))),
    case("headers: addresses", SMALL, |size| headers("x-forwarded-for", fill("10.0.0.1, ", size))),
    case("headers: blank addresses", SMALL, |size| headers("x-forwarded-for", fill(", ", size))),
    case("check: plain calls", SMALL, |size| {
        work(fill(&format!("{PLAIN_START}content-length: 0\r\n\r\n"), size), |calls| {
            plain_bodies(calls.as_bytes(), usize::MAX >> 1).len()
        })
    }),
    case("check: a plain head, byte by byte", SMALL / 4, |size| {
        let head = format!("{PLAIN_START}content-length: 0\r\nx: {}\r\n\r\n", "a".repeat(size));
        work(head, |call| plain_bodies(call.as_bytes(), 1).len())
    }),
    case("check: a plain body, byte by byte", SMALL / 4, |size| {
        let call = format!("{PLAIN_START}content-length: {size}\r\n\r\n{}", "a".repeat(size));
        work(call, |call| plain_bodies(call.as_bytes(), 1).len())
    }),
    case("check: attributes", SMALL, |size| {
        let body = format!("{{\"attributes\":{{{}\"a\":1}}}}", numbered(size, |n| format!("\"a{n}\":{n},")));
        work(body, |body| is_check(body.as_bytes()))
    }),
    case("check: a batch", SMALL, |size| {
        let body = format!("[{}{{}}]", fill("{\"ip\":\"1.2.3.4\",\"headers\":{\"A\":\"b\"}},", size));
        work(body, |body| batch_len(body.as_bytes()))
    }),
    case("check: an unknown field", SMALL, |size| {
        work(format!("{{\"{}\":1}}", fill("é", size)), |body| is_check(body.as_bytes()))
    }),
];

const PLAIN_START: &str = "POST /v1/check HTTP/1.1\r\nhost: x\r\n";
const LARGE: usize = 32 << 10;
const SMALL: usize = 16 << 10;
const CHUNKED: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
const EMAIL_HEAD: &str = "Content-Disposition: form-data; name=email\r\n\r\n";
const FORM: &str = "multipart/form-data; boundary=XX";

fn chunk(text: &str) -> String {
    format!("{CHUNKED}{:x}\r\n{text}\r\n0\r\n\r\n", text.len())
}

fn framed(bytes: String, piece: usize) -> Work {
    work(bytes, move |bytes| heads(bytes.as_bytes(), piece))
}

fn json(body: String) -> Work {
    work(body, |body| {
        ["email", "user.name"].map(|path| json_fields(body.as_bytes(), path, Completeness::Truncated))
    })
}

fn form(content_type: &'static str, body: String) -> Work {
    work(body, move |body| form_fields(content_type, body.as_bytes(), "email", Completeness::Truncated))
}

fn headers(name: &str, value: String) -> Work {
    work(vec![(name.to_owned(), value)], screened)
}

#[expect(clippy::ptr_arg, reason = "it is passed as a function of the input")]
fn screened(lines: &Vec<(String, String)>) -> usize {
    let lines: Vec<(&[u8], &[u8])> = lines
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.trim_end_matches([' ', ',']).as_bytes()))
        .collect();
    forwarded_headers(&lines).iter().map(|headers| headers.len()).sum()
}
