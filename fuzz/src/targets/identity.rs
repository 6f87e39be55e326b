//! Target and sender of a request: paths, hosts, cookies, queries, addresses, keys and normal forms.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use tollgate::Hit;
use tollgate::internal::Rate;
use tollgate::internal::hit;
use tollgate::internal::identity::address::{TrustedProxies, parse_ip};
use tollgate::internal::identity::forwarded::{ForwardingHeader, client_ip, last_parameter};
use tollgate::internal::identity::{Attribute, Key, normal};
use tollgate::internal::request::target::segments;
use tollgate::internal::request::{self, fields};
use tollgate::internal::time::{calendar, parse_duration};

use super::{MAX_BYTES, Target, first_line, text, texts};

pub(super) const TARGET: Target = Target {
    name: "request_target",
    run: |input| {
        let Some(input) = text(input) else { return };
        let (host, rest) = first_line(input);
        let target = request::Target::new("get", host, rest);
        let path = target.path();
        assert!(path.is_empty() == rest.is_empty() && (path.is_empty() || path.starts_with('/')), "{path:?}");
        assert!(path.len() <= 1 || !path.ends_with('/'), "a slash at the end: {path:?}");
        assert!(!path.contains("//"), "an empty segment: {path:?}");
        assert!(segments(path).all(|segment| segment != "." && segment != ".."), "it climbs: {path:?}");
        assert!(!target.host().ends_with('.') && !target.host().contains('@'), "{:?}", target.host());
    },
    words: &[
        "/..", "/./", "%2e", "%2F", "%252e", ";x=1", "\\", "http://", "?a=b", "#c", "[::1]", ":80", "user@",
        "..", "\n",
    ],
    seeds: || {
        texts(&[
            "api.example.com:443\n/a/../b//c;x=1?y=z#f",
            "\nhttp://User@EXAMPLE.com.:80/a/%2e%2e/login?x",
            "[2001:db8::1]:80\n/a%2Fb%5c..%252e\\c",
            "ex%61mple.com..\n*",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const FIELDS: Target = Target {
    name: "request_fields",
    run: |input| {
        let Some(input) = text(input) else { return };
        let cookies = fields::cookies(input, "sid").count();
        assert!(cookies <= input.matches("sid").count());
        assert!(fields::parameters(input, "api key").all(|value| value.len() <= 3 * input.len()));
        assert!(fields::bearer(input).is_none_or(|token| !token.is_empty() && !token.contains(' ')));
        for attribute in ["cookie:sid", "header:authorization", "query:sid"] {
            let Ok(key) = Key::parse(&format!("{attribute}:{input}")) else { continue };
            assert_eq!(Key::parse(&key.to_string()), Ok(key), "normalised twice");
        }
    },
    words: &[
        "sid=",
        "; ",
        "api+key=",
        "api%20key",
        "&",
        "%zz",
        "%ff",
        "Bearer ",
        "\"",
        "=",
        "\\141",
        "%25",
        ";",
    ],
    seeds: || texts(&["a=2; sid=\"1\"; b=3", "a=2&api%20key=%41+b&API+key=%ff", "bearer  abc.def"]),
    max_bytes: MAX_BYTES,
};

pub(super) const CLIENT_ADDRESS: Target = Target {
    name: "client_address",
    run: |input| {
        static TRUSTED: LazyLock<TrustedProxies> =
            LazyLock::new(|| TrustedProxies::parse(["10.0.0.0/8", "2001:db8::/32"]).expect("valid networks"));
        let Some(input) = text(input) else { return };
        let lines: Vec<&str> = input.lines().collect();
        let [near, far] = [[10, 0, 0, 1], [203, 0, 113, 9]].map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
        for header in [ForwardingHeader::XForwardedFor, ForwardingHeader::Forwarded] {
            assert_eq!(client_ip(far, header, &lines, &TRUSTED), far, "a client chose its address");
            let client = client_ip(near, header, &lines, &TRUSTED);
            // What a trusted proxy appends decides, whatever the client wrote before it.
            let appended = [&lines[..], &["for=198.51.100.7"]].concat();
            if header == ForwardingHeader::Forwarded {
                let expected = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
                assert_eq!(client_ip(near, header, &appended, &TRUSTED), expected, "not {client}");
            }
        }
        last_parameter(&lines, "host");
    },
    words: &[
        "for=",
        "for=\"[2001:db8::1]:80\"",
        "10.0.0.2",
        "203.0.113.9",
        ", ",
        ";",
        "\\\"",
        "\"",
        "proto=https",
        "unknown",
        "_x",
        "\n",
    ],
    seeds: || {
        texts(&[
            "203.0.113.9, 10.0.0.2, 10.0.0.3:80\n[2001:db8::1]:443, unknown",
            "for=203.0.113.9;proto=https;by=_x, For=\"[2001:db8::1]:80\"\nfor=10.0.0.2;host=\"a\\\",b\"",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const KEY: Target = Target {
    name: "key",
    run: |input| {
        let Some(input) = text(input) else { return };
        let Ok(key) = Key::parse(input) else { return };
        let written = key.to_string();
        let again = Key::parse(&written).expect("a key can be read as it is written");
        assert_eq!(again, key, "{written:?}");
        assert_eq!(again.to_string(), written);
        let grouped = key.clone().grouped(64);
        assert_eq!(grouped.clone().grouped(64), grouped, "grouped twice");
        assert!(key.encoded_parts().count() >= 1);
    },
    words: &[
        "ip:",
        "user:",
        "email:",
        "mac:",
        "header:x:",
        "cookie:a:",
        "jwt:sub:",
        "+",
        "%2B",
        "%25",
        "10.0.0.0/8",
        "::/64",
        ":",
    ],
    seeds: || {
        texts(&[
            "ip:1.2.3.4+user:42",
            "email:Ann@Example.com",
            "header:x-a:b%2Bc+json:a.b:1",
            "ip:2001:db8::/32",
            "mac:AA-BB-CC-DD-EE-FF",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const VALUES: Target = Target {
    name: "values",
    run: |input| {
        let Some(input) = text(input) else { return };
        if let Some(mac) = normal::mac(input) {
            assert_eq!(normal::mac(&mac).as_deref(), Some(&*mac));
        }
        if let Some(email) = normal::email(input) {
            assert_eq!(normal::email(&email).as_deref(), Some(&*email));
        }
        parse_ip(input);
        parse_duration(input).ok();
        calendar::parse_rfc3339(input);
        Attribute::parse(input).ok();
        input.parse::<Rate>().ok();
        let hit = Hit::on("GET", input, input).user(input).email(input).mac(input).api_key(input);
        for attribute in ["user", "email", "mac", "api_key", "path", "host", "query:a"] {
            let attribute = Attribute::parse(attribute).expect("an attribute");
            assert!(hit::value(&hit, &attribute, 64).is_none_or(|value| !value.is_empty()), "an empty value");
        }
    },
    words: &[
        "/m",
        "/10s",
        " requests/",
        "@",
        "aa:bb",
        "T00:00:00Z",
        "2027-01-01",
        "h",
        "month",
        "::",
        ".",
        "%2e",
        "+",
    ],
    seeds: || {
        texts(&[
            "5/m",
            "30/10s",
            "5 requests/min",
            "1h30m",
            "2027-01-01T00:00:00.5+02:00",
            " Ann@Example.com ",
            "AABB.CCDD.EEFF",
            "::ffff:1.2.3.4",
            "header:x-a",
            "2002:102:304::",
        ])
    },
    max_bytes: MAX_BYTES,
};
