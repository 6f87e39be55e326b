//! Responses of counter stores, and values that other programs have written there.

use std::sync::LazyLock;

use tollgate::internal::{Limit, PolicySnapshot};
use tollgate_stores::testing::{is_track, memcached_answers, redis_replies, state, violations};
use tollgate_testkit::ALGORITHMS;

use super::{MAX_BYTES, Target, texts};

pub(super) const REDIS: Target = Target {
    name: "redis_replies",
    run: |input| {
        let whole = redis_replies(input, input.len().max(1));
        for piece in [1, 3] {
            let pieces = redis_replies(input, piece);
            assert!(whole.is_none() || pieces == whole, "replies depend on how they are read");
        }
    },
    words: &[
        "+OK\r\n",
        "-ERR x\r\n",
        ":1\r\n",
        "$3\r\nabc\r\n",
        "$-1\r\n",
        "*2\r\n",
        "*-1\r\n",
        "*0\r\n",
        "$0\r\n\r\n",
        "\r\n",
    ],
    seeds: || {
        texts(&[
            "*4\r\n:1\r\n$3\r\na\r\n\r\n$-1\r\n*1\r\n+OK\r\n-ERR no\r\n",
            "+PONG\r\n:-5\r\n*0\r\n*-1\r\n",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const MEMCACHED: Target = Target {
    name: "memcached_answers",
    run: |input| {
        let whole = memcached_answers(input, input.len().max(1));
        for piece in [1, 3] {
            let pieces = memcached_answers(input, piece);
            // In pieces garbage is noticed earlier, never later.
            assert!(
                whole.is_none() || pieces.is_none() || pieces == whole,
                "answers depend on how they are read"
            );
        }
    },
    words: &[
        "VA 5 c42 O7\r\n",
        "HD O8\r\n",
        "EN\r\n",
        "NF O1\r\n",
        "EX\r\n",
        "NS\r\n",
        "SERVER_ERROR out of memory\r\n",
        "\r\n",
        " ",
    ],
    seeds: || {
        texts(&["VA 5 c42 O7\r\nab\r\nc\r\nHD O8\r\n", "EN\r\nNS O1\r\nSERVER_ERROR x\r\nVA 0\r\n\r\n"])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const VALUES: Target = Target {
    name: "store_values",
    run: |input| {
        static LIMITS: LazyLock<Vec<Limit>> = LazyLock::new(limits);
        let Some((choice, bytes)) = input.split_first() else { return };
        let limit = &LIMITS[usize::from(*choice) % LIMITS.len()];
        check_stable(bytes, |bytes| state(limit, bytes));
        check_stable(bytes, violations::record);
        check_stable(bytes, violations::log_entry);
        is_track(bytes);
    },
    words: &[
        "\u{1}",
        "v1 tries=1 denials=0 last_seen=5 latest=1,2 writers=9f:1,a:2",
        "\u{1}\u{2}\u{3}",
        "ip:1.2.3.4",
    ],
    seeds: || {
        let plain =
            texts(&["\0v1 tries=30 denials=10 last_seen=1794750468123456 latest=1,2 writers=9f2c:17"]);
        let numbers = (0..8).map(|choice| vec![choice, 1, 5, 5, 9, 1, 1, 3, 2]);
        plain.into_iter().chain(numbers).collect()
    },
    max_bytes: MAX_BYTES,
};

/// A limit of every algorithm.
fn limits() -> Vec<Limit> {
    let rule = |name| format!("- {{ id: {name}, key: user, limit: 100/h, algorithm: {name} }}\n");
    let rules = format!("rules:\n{}", ALGORITHMS.map(rule).concat());
    let policy = PolicySnapshot::from_yaml(&rules).expect("valid rules");
    policy
        .rules()
        .iter()
        .flat_map(|rule| rule.all_limits().map(|limit| limit.limit).collect::<Vec<_>>())
        .collect()
}

/// What was decoded once is written and decoded to the same.
fn check_stable(bytes: &[u8], rewritten: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    if let Some(once) = rewritten(bytes) {
        assert_eq!(rewritten(&once).as_ref(), Some(&once), "a value changes when it is written again");
    }
}
