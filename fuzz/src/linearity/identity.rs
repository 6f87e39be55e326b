//! Paths, hosts, cookies, queries, keys, addresses, tokens and receipts.

use std::net::{IpAddr, Ipv4Addr};

use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::{ForwardingHeader, client_ip, last_parameter};
use tollgate::internal::identity::{Attribute, FieldSource, Key, normal};
use tollgate::internal::request::{Target, fields};
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Time};
use tollgate_server::testing;

use super::{Case, Work, bounded, case, fill, numbered, work};

pub(super) const CASES: &[Case] = &[
    case("path: segments that climb", LARGE, |size| path(fill("/a/..", size))),
    case("path: up and down", LARGE, |size| path(fill("/a", size) + &fill("/..", size))),
    case("path: encoded dots", LARGE, |size| path(fill("%2e%2e%2f", size))),
    case("path: semicolons", LARGE, |size| path(fill(";", size))),
    case("path: slashes", LARGE, |size| path(fill("/", size))),
    case("path: bytes that are not UTF-8", LARGE, |size| path(format!("/{}", fill("%ff", size)))),
    case("path: schemes", LARGE, |size| path(fill("http://", size))),
    case("host: dots", SMALL, |size| host(fill(".", size))),
    case("host: escapes", SMALL, |size| host(fill("%2e", size))),
    case("host: at signs and colons", SMALL, |size| host(fill("a@b:", size))),
    case("host: brackets", SMALL, |size| host(fill("[::", size))),
    case("cookies: many", LARGE, |size| {
        hit_value(
            "cookie:sid",
            |hit, text| hit.field(FieldSource::Header, "cookie", text),
            numbered(size, |n| format!("sid={n}; ")),
        )
    }),
    case("cookies: many lines", SMALL, |size| {
        work(size / 10, |lines| {
            let hit = (0..*lines).fold(Hit::on("GET", "h", "/"), |hit, n| {
                hit.field(FieldSource::Header, "cookie", format!("sid={n}"))
            });
            decide("cookie:sid", &hit)
        })
    }),
    case("cookies: escapes in escapes", LARGE, |size| cookie(format!("{}61", fill("%25", size)))),
    case("cookies: percent signs before escapes", LARGE, |size| cookie(fill("%", size) + &fill("%36", size))),
    case("cookies: octal escapes", LARGE, |size| cookie(fill("\\134\\0", size))),
    case("cookies: backslashes and quotes", LARGE, |size| cookie(fill("\\\"%\\4", size))),
    case("cookies: equals signs", LARGE, |size| {
        work(fill("=", size), |text| fields::cookies(text, "sid").count())
    }),
    case("query: many parameters", LARGE, |size| query(numbered(size, |n| format!("a={n}&")))),
    case("query: semicolons", LARGE, |size| query(numbered(size, |n| format!("a={n};")))),
    case("query: escapes", LARGE, |size| query(fill("%61=%ff&", size))),
    case("query: percent signs", LARGE, |size| query(fill("%", size))),
    case("bearer: white space", LARGE, |size| {
        work(format!("Bearer {}x", fill(" ", size)), |text| fields::bearer(text).is_some())
    }),
    case("bearer: many words", LARGE, |size| {
        work(format!("Bearer {}", fill("x\t", size)), |text| fields::bearer_tokens(text).count())
    }),
    case("authorization: many words", LARGE, |size| {
        hit_value(
            "header:authorization",
            |hit, text| hit.field(FieldSource::Header, "authorization", text),
            format!("Bearer {}", numbered(size, |n| format!("{n} "))),
        )
    }),
    case("fields: many values of one field", 2_000, |size| {
        work(size, |values| {
            let hit = (0..*values).fold(Hit::on("GET", "h", "/"), |hit, n| {
                hit.field(FieldSource::Json, "email", format!("{n}"))
            });
            decide("json:email", &hit)
        })
    }),
    case("fields: many values of both attributes of a banned key", 2_000, |size| {
        work(size, |values| {
            let hit = (0..*values / 2).fold(Hit::on("GET", "h", "/"), |hit, n| {
                let hit = hit.field(FieldSource::Json, "email", format!("{n}"));
                hit.field(FieldSource::Cookie, "sid", format!("{n}"))
            });
            decide_banned("json:email:evil+cookie:sid:7", &hit)
        })
    }),
    case("fields: many values of one attribute of a banned key", 2_000, |size| {
        work(size, |values| {
            let hit = (0..*values).fold(Hit::on("GET", "h", "/"), |hit, n| {
                hit.field(FieldSource::Json, "email", format!("{n}"))
            });
            decide_banned("json:email:evil+cookie:sid:7", &hit.field(FieldSource::Cookie, "sid", "7"))
        })
    }),
    bounded("forwarded: elements", "MAX_HOPS", LARGE, |size| {
        client(ForwardingHeader::Forwarded, fill("for=10.0.0.1, ", size))
    }),
    case("forwarded: quotes", LARGE, |size| client(ForwardingHeader::Forwarded, fill("\"", size))),
    case("forwarded: escaped quotes", LARGE, |size| client(ForwardingHeader::Forwarded, fill("\\\"", size))),
    case("forwarded: backslashes", LARGE, |size| {
        client(ForwardingHeader::Forwarded, fill("\\", size) + "\"")
    }),
    case("forwarded: commas in quotes", LARGE, |size| {
        client(ForwardingHeader::Forwarded, format!("\"{}", fill(",", size)))
    }),
    case("forwarded: parameters", LARGE, |size| client(ForwardingHeader::Forwarded, fill("a=b;", size))),
    bounded("addresses: many", "MAX_HOPS", LARGE, |size| {
        client(ForwardingHeader::XForwardedFor, fill("10.0.0.1,", size))
    }),
    case("addresses: one long", LARGE, |size| client(ForwardingHeader::XForwardedFor, fill("1", size))),
    case("addresses: brackets", LARGE, |size| client(ForwardingHeader::XForwardedFor, fill("[", size))),
    case("key: parts", KEY, |size| key(numbered(size, |n| format!("attr:a{n}:v+")) + "ip:1.2.3.4")),
    case("key: one long value", KEY, |size| key(format!("user:{}", fill("%41", size)))),
    case("key: colons", KEY, |size| key(fill("header:", size))),
    bounded("key: plus signs", "the first empty part", KEY, |size| key(fill("+", size))),
    case("email: dots and plus signs", LARGE, |size| {
        work(fill("a.+", size) + "@b", |text| normal::email(text).is_some())
    }),
    bounded("email: at signs", "one at sign", LARGE, |size| {
        work(fill("@", size), |text| normal::email(text).is_some())
    }),
    case("email: letters that fold", LARGE, |size| {
        work(fill("İ", size), |text| normal::email(text).is_some())
    }),
    case("mac: separators", LARGE, |size| work(fill("aa:", size), |text| normal::mac(text).is_some())),
    case("jwt: many claims", TOKEN, |size| {
        token(
            "{\"alg\":\"HS256\"}".to_owned(),
            format!("{{{}\"sub\":1}}", numbered(size, |n| format!("\"a{n}\":{n},"))),
        )
    }),
    case("jwt: nested claims", TOKEN, |size| token("{\"alg\":\"HS256\"}".to_owned(), fill("{\"a\":", size))),
    case("jwt: a long header", TOKEN, |size| {
        token(format!("{{\"alg\":\"HS256\",\"a\":\"{}\"}}", fill("\\n", size)), "{}".to_owned())
    }),
    bounded("jwt: dots", "three parts", TOKEN, |size| {
        work(fill(".", size), |text| testing::token_subject(text).is_some())
    }),
    case("jwt: a long signature", TOKEN, |size| {
        let token = testing::signed_token(b"{\"alg\":\"HS256\"}", b"{\"sub\":\"a\"}") + &fill("A", size);
        work(token, |text| testing::token_subject(text).is_some())
    }),
    case("receipt: charges", TOKEN, |size| {
        let charges = fill("[\"a\",\"x\",1,1,[1,1,0],[\"d\",[[\"ip\",\"1\",false]],0]],", size);
        let contents = format!(
            "{{\"id\":[0,1,2],\"at\":1800000000000000000,\"charges\":[{}]}}",
            charges.trim_end_matches(',')
        );
        work(testing::signed_receipt(contents.as_bytes()), |text| testing::settle(text))
    }),
    case("receipt: not one of ours", TOKEN, |size| work(fill("A", size), |text| testing::settle(text))),
];

const LARGE: usize = 32 << 10;
const SMALL: usize = 16 << 10;
/// Half of the longest key.
const KEY: usize = 1 << 10;
/// Twice as much fits the longest token, and the longest receipt.
const TOKEN: usize = 4 << 10;

fn path(text: String) -> Work {
    work(text, |text| Target::new("GET", "h", text).path().len())
}

fn host(text: String) -> Work {
    work(text, |text| Target::new("GET", text, "/").host().len())
}

fn query(text: String) -> Work {
    work(text, |text| fields::parameters(text, "a").map(|value| value.len()).sum::<usize>())
}

fn cookie(value: String) -> Work {
    let line = format!("sid={value}");
    hit_value("cookie:sid", |hit, text| hit.field(FieldSource::Header, "cookie", text), line)
}

fn key(text: String) -> Work {
    work(text, |text| Key::parse(text).map(|key| key.to_string().len()).unwrap_or_default())
}

fn token(header: String, claims: String) -> Work {
    let token = testing::signed_token(header.as_bytes(), claims.as_bytes());
    work(token, |token| testing::token_subject(token))
}

fn client(header: ForwardingHeader, line: String) -> Work {
    let trusted = TrustedProxies::parse(["10.0.0.0/8"]).expect("valid networks");
    work(line, move |line| {
        let peer = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        last_parameter(&[line], "host");
        client_ip(peer, header, &[line], &trusted)
    })
}

/// Decides a hit with one value in one place.
fn hit_value(attribute: &'static str, add: fn(Hit<'_>, String) -> Hit<'_>, text: String) -> Work {
    work(text, move |text| decide(attribute, &add(Hit::on("GET", "h", "/"), text.clone())))
}

/// Decides a hit under a rule that counts by an attribute, each of its values where there are several.
fn decide(attribute: &str, hit: &Hit<'_>) -> bool {
    let policy = format!(
        "rules: [{{ id: a, key: '{attribute}', ambiguous_key: each, limit: 5/m }}]\nbans: [{{ key: '{attribute}:evil' }}]"
    );
    let engine = EngineCore::new(PolicySnapshot::from_yaml(&policy).expect("valid rules"));
    Attribute::parse(attribute).expect("an attribute");
    engine.check(hit, Time::from_secs(1_800_000_000)).allowed
}

/// Looks a hit up in a list of bans with one key.
fn decide_banned(key: &str, hit: &Hit<'_>) -> bool {
    let policy = format!("rules: [{{ id: a, key: ip, limit: 5/m }}]\nbans: [{{ key: '{key}' }}]");
    let engine = EngineCore::new(PolicySnapshot::from_yaml(&policy).expect("valid rules"));
    engine.check(hit, Time::from_secs(1_800_000_000)).allowed
}
