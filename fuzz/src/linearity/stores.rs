//! Responses of counter stores.

use tollgate_stores::testing::{is_track, memcached_answers, redis_replies, violations};

use super::{Case, Work, case, fill, work};

pub(super) const CASES: &[Case] = &[
    case("redis: a long array in small pieces", LARGE, |size| {
        redis(format!("*{}\r\n{}", size / 4, fill(":1\r\n", size)), 16)
    }),
    case("redis: nested arrays", LARGE, |size| redis(fill("*2\r\n*1\r\n:1\r\n:2\r\n", size), 16)),
    case("redis: a long string byte by byte", LARGE, |size| {
        redis(format!("${size}\r\n{}\r\n", fill("x", size)), 1)
    }),
    case("redis: a long line byte by byte", LARGE, |size| redis(format!("+{}\r\n", fill("x", size)), 1)),
    case("redis: many short replies", LARGE, |size| redis(fill("+OK\r\n", size), 1 << 10)),
    case("memcached: a long value byte by byte", LARGE, |size| {
        memcached(format!("VA {size} c1 O1\r\n{}\r\n", fill("x", size)), 1)
    }),
    case("memcached: many short answers", LARGE, |size| memcached(fill("HD O1\r\n", size), 1 << 10)),
    case("memcached: many flags", 900, |size| memcached(format!("HD{}\r\n", fill(" x", size)), 2 << 10)),
    case("values: an entry of the log of bans", 1_000, |size| {
        let entry = violations::lift_entry(&format!("user:{}", fill("x", size)));
        work(entry, |bytes| assert!(violations::log_entry(bytes).is_some()))
    }),
    // Of rules, of which a record has at most 64.
    case("values: a record of a ban key", 30, |rules| {
        work(ban_record(rules), |bytes| assert!(violations::record(bytes).is_some()))
    }),
    case("values: a tracked key", LARGE, |size| {
        let text = format!(
            "v1 tries=1 denials=1 last_seen=1 latest={} writers={}",
            fill("1,", size),
            fill("1:1,", size)
        );
        work(text, |text| assert!(is_track(text.as_bytes())))
    }),
];

const LARGE: usize = 32 << 10;

/// A record with a hundred denials by each rule. All numbers are single bytes.
fn ban_record(rules: usize) -> Vec<u8> {
    const TIMES: u8 = 100;
    const VERSION: u8 = 1;
    // Strikes and times, two empty texts, no writers.
    let mut bytes = vec![VERSION, 1, 1, 1, 1, 1, 1, 0, 0, 0];
    bytes.push(u8::try_from(rules).expect("few rules"));
    for _ in 0..rules {
        bytes.extend([1, TIMES]);
        bytes.extend([1, 1].repeat(TIMES.into()));
    }
    bytes
}

fn redis(bytes: String, piece: usize) -> Work {
    work(bytes, move |bytes| redis_replies(bytes.as_bytes(), piece).map(|replies| replies.len()))
}

fn memcached(bytes: String, piece: usize) -> Work {
    work(bytes, move |bytes| memcached_answers(bytes.as_bytes(), piece).map(|answers| answers.len()))
}
