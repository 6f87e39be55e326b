//! Documents of operators: YAML, rules, the configuration, and imports of the admin API.

use tollgate::internal::{PolicySnapshot, document};
use tollgate_server::testing;
use tollgate_stores::rules::for_each_rule;

use super::{MAX_BYTES, Target, text, texts};

pub(super) const YAML: Target = Target {
    name: "yaml",
    run: |input| {
        let Some(input) = text(input) else { return };
        // JSON on one line has a reader of its own; with a line break behind it, it is read as all YAML is.
        let read = document::read(input);
        let with_break = format!("{input}\n");
        let in_general = document::read(&with_break).ok();
        if input.starts_with('{') {
            assert_eq!(read.ok(), in_general, "the two readers disagree");
        }
    },
    words: YAML_WORDS,
    seeds: yaml_seeds,
    max_bytes: MAX_BYTES,
};

pub(super) const CONFIG: Target = Target {
    name: "config",
    run: |input| {
        let Some(input) = text(input) else { return };
        testing::config(input).ok();
        PolicySnapshot::from_yaml(input).ok();
    },
    words: CONFIG_WORDS,
    seeds: || {
        texts(&[
            "listen: { http: 127.0.0.1:8080, admin: off }\nupstreams: ['http://127.0.0.1:3000']\ntrusted_proxies: [10.0.0.0/8]\n\
             identity: { user: jwt:sub }\nmemory: 64MiB\nrules:\n- { id: a, match: POST /login, key: [email, ip], limits: [5/m, 20/h], algorithm: sliding-log }\n\
             - { id: b, uid: '42', url: /search, time: minute, requests: 5 }\n",
            "rules:\n- id: a\n  key: ip\n  limits_by: { attr: plan, free: [10/m], pro: [100/m] }\n  ban: { key: [ip], after: 3, within: 10m, for: 1h, max: 24h }\n\
             \x20 overrides:\n  - { ip: 10.0.0.1, limits: [50/m] }\nallow: ['ip:10.0.0.0/8']\nbans: [{ key: 'user:x', until: 2027-01-01T00:00:00Z }]\n",
            "counters: redis://127.0.0.1/\nqueue: { max_bytes: 1MiB }\nproxy: { timeouts: { idle: 5s } }\non_store_error: local\nnodes: 3\n",
        ])
    },
    max_bytes: MAX_BYTES,
};

const YAML_WORDS: &[&str] = &[
    "- ", ": ", "\n  ", "&a ", "*a", "? ", "| ", ">-\n", "---\n", "...\n", "{", "}", "[", "]", ", ", "'",
    "\"", "#", "!!str ", "<<: ", "~", "%YAML", "\\u0041", "\t", "\u{feff}", "\u{85}",
];

const CONFIG_WORDS: &[&str] = &[
    "rules:\n",
    "- { id: a, limit: 5/m }\n",
    "key: ",
    "match: ",
    "limits: [5/m]",
    "algorithm: token-bucket",
    "algorithm: tiered-window",
    "levels: [s, m, h]",
    "burst: 5",
    "refill: tick",
    "tick: 1s",
    "window: first-hit",
    "resolution: 1s",
    "on_exceed: hold",
    "mode: shadow",
    "cost: 2",
    "track: { times: 16, keep: 30d }",
    "header:X",
    "jwt:sub",
    "/a/{b}/**",
    "host: '*.example.com'",
    "enforce_percent: 10",
    "\n",
    ": ",
    "- ",
    "{ ",
    " }",
    "0/m",
    "18446744073709551615/s",
];

fn yaml_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "a: &x [1, 2]\nb: *x\nc:\n  - d: 'it''s'\n    e: |\n      two\n      lines\n",
        "{\"a\": [1, \"2\\n\\u00e9\", true, null], \"b\": {}}",
        "? key\n: value\n# comment\n\"quoted\": >-\n  folded\n  text\n",
    ])
}

pub(super) const RULES_IMPORT: Target = Target {
    name: "rules_import",
    run: |input| {
        let Some(input) = text(input) else { return };
        let Ok(count) = for_each_rule(input, || 0, |count, _| *count += 1) else { return };
        // What an import takes, the file takes as well.
        let Ok(root) = document::read(input) else { panic!("a text that cannot be read has {count} rules") };
        let list = root.as_map().and_then(|map| map.iter().find(|entry| entry.key() == "rules"));
        let list = list.map_or(&root, |entry| entry.value()).as_list().map_or(0, <[_]>::len);
        assert_eq!(count, list, "rules of an import are lost or made up");
    },
    words: CONFIG_WORDS,
    seeds: || {
        texts(&[
            "rules:\n- {id: a, limit: 5/m}\n- {\"id\":\"b\",\"limit\":\"6/m\"}\n",
            "---\n- id: a\n  limit: 5/m # five\n\n# other\n- id: b\n  limit: 6/m\n",
            "{\"rules\": [{\"id\":\"a\",\"limit\":\"5/m\"},\n {\"id\":\"b\",\"limit\":\"6/m\"}]}",
            "- {id: a, key: &k [ip, user], limit: 5/m}\n- {id: b, key: *k, limit: 6/m}\n",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const BANS_IMPORT: Target = Target {
    name: "bans_import",
    run: |input| {
        text(input).map(testing::admin::bans);
    },
    words: &[
        "ip:10.0.0.1",
        "user:x",
        " 1h ",
        " 2027-01-01T00:00:00Z ",
        "reason",
        "\n",
        "bans:\n",
        "- { key: ",
        ", for: 1h }\n",
        "# c\n",
        "[",
    ],
    seeds: || {
        texts(&[
            "ip:203.0.113.9 1h scraping\nuser:evil 2027-01-01T00:00:00Z\n# comment\nip:10.0.0.0/8\n",
            "{\"bans\":[{\"key\":\"ip:203.0.113.9\",\"for\":\"1h\",\"reason\":\"x\"},{\"key\":\"user:a\",\"until\":\"2027-01-01T00:00:00Z\"}]}",
            "bans:\n- { key: 'ip:10.0.0.1' }\n",
        ])
    },
    max_bytes: MAX_BYTES,
};
