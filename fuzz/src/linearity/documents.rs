//! Documents: YAML, rules, imports, snapshots.

use tollgate::internal::engine::EngineSetup;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::{EngineCore, PolicySnapshot, document};
use tollgate::{Hit, Time};
use tollgate_server::testing::{self, admin};
use tollgate_stores::rules::for_each_rule;

use super::{Case, Work, bounded, case, fill, numbered, work};

pub(super) const CASES: &[Case] = &[
    case("yaml: a map of many keys", SMALL, |size| read(numbered(size, |n| format!("k{n}: v\n")))),
    case("yaml: a list of lists", SMALL, |size| read(fill("- - a\n", size))),
    case("yaml: anchors and aliases", SMALL, |size| {
        read(numbered(size, |n| format!("- &a{n} x\n- *a{n}\n")))
    }),
    case("yaml: one plain text over many lines", SMALL, |size| read(format!("a: {}", fill("b c\n  ", size)))),
    case("yaml: a block text", SMALL, |size| read(format!("a: |\n{}", fill("  b\n", size)))),
    case("yaml: a folded text with empty lines", SMALL, |size| {
        read(format!("a: >\n  b\n{}  c\n", fill("\n", size)))
    }),
    case("yaml: quoted escapes", SMALL, |size| read(format!("a: \"{}\"", fill("\\u00e9\\\n  ", size)))),
    case("yaml: comments", SMALL, |size| read(fill("# c\n", size))),
    case("yaml: white space", SMALL, |size| read(fill(" ", size) + "a: b")),
    bounded("yaml: open brackets", "MAX_DEPTH", SMALL, |size| read(fill("[", size))),
    bounded("yaml: open braces", "MAX_DEPTH", SMALL, |size| read(fill("{a: ", size))),
    case("yaml: a flow list on one line", SMALL, |size| read(format!("[{}]", fill("a, ", size)))),
    case("yaml: a flow map on one line", SMALL, |size| {
        read(format!("{{{}}}", numbered(size, |n| format!("k{n}: v, "))))
    }),
    case("yaml: question marks", SMALL, |size| read(numbered(size, |n| format!("? k{n}\n: v\n")))),
    bounded("yaml: nested question marks", "the first error", SMALL, |size| read(fill("? ", size))),
    case("yaml: colons", SMALL, |size| read(format!("a: {}", fill("b:", size)))),
    bounded("yaml: maps on one line", "one on a line", SMALL, |size| read(fill("a: ", size))),
    case("yaml: possible keys", SMALL, |size| {
        read(format!("[{}]", numbered(size, |n| format!("\"k{n}\": v, "))))
    }),
    bounded("yaml: texts without commas", "the first error", SMALL, |size| {
        read(format!("[{}", fill("\"a\" ", size)))
    }),
    case("yaml: indentation that grows", 4 << 10, |size| {
        let mut text = String::new();
        for depth in 0.. {
            if text.len() >= size {
                break;
            }
            text += &format!("{}a:\n", " ".repeat(depth % 60));
        }
        read(text)
    }),
    case("yaml: tags", SMALL, |size| read(fill("- !t x\n", size))),
    case("yaml: directives", SMALL, |size| {
        read(numbered(size, |n| format!("%TAG !t{n}! a\n")) + "---\na: b\n")
    }),
    bounded("yaml: directives of one handle", "the first error", SMALL, |size| {
        read(fill("%TAG ! a\n", size))
    }),
    bounded("yaml: documents", "one document", SMALL, |size| read(fill("---\na\n", size))),
    case("json: a document on one line", SMALL, |size| {
        read(format!("{{\"a\":[{}1]}}", fill("{\"b\":\"c\"},", size)))
    }),
    case("json: a document with escapes on one line", SMALL, |size| {
        read(format!("{{\"a\":[{}1]}}", fill("\"\\n\",", size)))
    }),
    case("rules: many of them", SMALL, |size| {
        policy(format!(
            "rules:\n{}",
            numbered(size, |n| format!("- {{ id: r{n}, key: ip, limit: {}/m }}\n", n + 1))
        ))
    }),
    case("rules: one with many overrides", SMALL, |size| {
        let overrides = numbered(size, |n| format!("  - {{ user: u{n}, limits: [{}/m] }}\n", n + 1));
        policy(format!("rules:\n- id: a\n  key: user\n  limit: 5/m\n  overrides:\n{overrides}"))
    }),
    case("rules: unknown keys", PROBLEMS, |size| {
        policy(format!("rules:\n- id: a\n{}", numbered(size, |n| format!("  k{n}: 1\n"))))
    }),
    case("rules: one long unknown key", SMALL, |size| {
        policy(format!("rules:\n- {{ id: a, limit: 5/m, {}: 1 }}", fill("x", size)))
    }),
    case("rules: one long pattern", SMALL, |size| {
        policy(format!("rules:\n- {{ id: a, match: '{}', limit: 5/m }}", fill("/a", size)))
    }),
    case("rules: many bans and allowed keys", SMALL, |size| {
        let bans = numbered(size, |n| format!("- {{ key: 'user:u{n}', until: 2030-01-01T00:00:00Z }}\n"));
        let allow = numbered(size, |n| format!("- user:a{n}\n"));
        policy(format!("bans:\n{bans}allow:\n{allow}"))
    }),
    case("config: problems", PROBLEMS, |size| {
        work(numbered(size, |n| format!("k{n}: v\n")), |text| testing::config(text))
    }),
    case("import: rules as a block list", LARGE, |size| {
        import(numbered(size, |n| format!("- id: r{n}\n  key: ip\n  limit: {}/m\n", n + 1)))
    }),
    case("import: rules as JSON on one line", LARGE, |size| import(format!("[{}", json_rules(size, "")))),
    case("import: rules as JSON, one a line", LARGE, |size| import(format!("[\n{}", json_rules(size, "\n")))),
    case("import: ids that are used twice", PROBLEMS, |size| import(fill("- {id: a, limit: 5/m}\n", size))),
    case("import: rules with problems", PROBLEMS, |size| {
        import(fill("- {id: a, limit: five, colour: red}\n", size))
    }),
    case("import: blank lines", LARGE, |size| {
        import(format!("- {{id: a, limit: 5/m}}\n{}", fill("\n", size)))
    }),
    case("import: comments before the list", LARGE, |size| {
        import(fill("# a\n", size) + "- {id: a, limit: 5/m}\n")
    }),
    case("import: a text that is cut wrongly at its end", PROBLEMS, |size| {
        import(numbered(size, |n| format!("- {{id: r{n}, limit: 5/m}}\n")) + "- {id: z, limit: 5/m\n")
    }),
    case("bans: lines", SMALL, |size| bans(numbered(size, |n| format!("user:u{n} 1h reason\n")))),
    case("bans: a list", SMALL, |size| {
        bans(numbered(size, |n| format!("- {{ key: 'user:u{n}', for: 1h }}\n")))
    }),
    case("bans: one long line", SMALL, |size| bans(format!("user:a {}", fill("x ", size)))),
    case("snapshot: counters", 20_000, |size| snapshot(size, "rules: [{ id: a, key: user, limit: 100/h }]")),
    case("snapshot: logs", 20_000, |size| {
        snapshot(size, "rules: [{ id: a, key: user, limit: 100/h, algorithm: sliding-log }]")
    }),
];

const LARGE: usize = 32 << 10;
const SMALL: usize = 16 << 10;
/// Words that are meant are searched for at length.
const PROBLEMS: usize = 6 << 10;
const NOW: Time = Time::from_secs(1_800_000_000);

fn read(text: String) -> Work {
    work(text, |text| document::read(text).is_ok())
}

fn policy(text: String) -> Work {
    work(text, |text| PolicySnapshot::from_yaml(text).is_ok())
}

fn import(text: String) -> Work {
    work(text, |text| for_each_rule(text, || 0, |count, _| *count += 1).is_ok())
}

fn json_rules(size: usize, between: &str) -> String {
    let rules =
        numbered(size, |n| format!("{{\"id\":\"r{n}\",\"key\":\"ip\",\"limit\":\"{}/m\"}},{between}", n + 1));
    rules.trim_end_matches(['\n', ',']).to_owned() + "]"
}

fn bans(text: String) -> Work {
    work(text, |text| admin::bans(text))
}

fn setup() -> EngineSetup {
    EngineSetup { memory_bytes: 64 << 20, secret: Secret::from_bytes([7; 16]), ..EngineSetup::default() }
}

/// The snapshot of so many keys, read.
fn snapshot(keys: usize, rules: &'static str) -> Work {
    let policy = || PolicySnapshot::from_yaml(rules).expect("valid rules");
    let engine = EngineCore::with_setup(policy(), setup());
    for n in 0..keys {
        engine.check(&Hit::by(&format!("user{n}")), NOW);
    }
    let mut saved = Vec::new();
    engine.save(&mut saved, rules, NOW).expect("a vector takes all that is written");
    let policy = policy();
    Box::new(move || {
        let restored = EngineCore::restore(policy, setup(), &saved, |_| None, NOW);
        assert_eq!(restored.map(|(_, restored)| restored.counters).ok(), Some(keys as u64));
    })
}
