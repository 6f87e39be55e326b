//! House rules that a machine can check: dependencies between modules, and the form of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;

struct Source {
    path: PathBuf,
    /// Without the unit tests at the end.
    code: String,
    text: String,
}

impl Source {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The module of the crate that the file belongs to: `store` for `src/store/memory/shard.rs`.
    fn module(&self) -> String {
        let inner = self.path.iter().skip_while(|part| *part != "src").nth(1);
        inner.map_or_else(String::new, |part| part.to_string_lossy().trim_end_matches(".rs").to_owned())
    }

    /// Lines of code that mention `word`.
    fn lines_with<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s str> {
        let code = self.code.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.filter(move |line| line.contains(word))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be listed") {
            let path = entry.expect("an entry can be read").path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn sources(krate: &str) -> Vec<Source> {
    let files = files_below(&root().join("crates").join(krate).join("src"), ".rs");
    assert!(!files.is_empty(), "{krate} has sources");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source can be read");
        let code = text.split("\nmod tests {").next().unwrap_or_default().to_owned();
        Source { path, code, text }
    };
    files.into_iter().map(read).collect()
}

/// A rule about a module that does not exist checks nothing.
fn check_exist(krate: &str, modules: &[&str]) {
    let sources = sources(krate);
    for module in modules {
        assert!(sources.iter().any(|source| source.module() == *module), "{krate} has no module {module}");
    }
}

fn check_never_imports(krate: &str, modules: &[&str], forbidden: &[&str]) {
    check_exist(krate, modules);
    check_exist(krate, forbidden);
    for source in sources(krate).iter().filter(|source| modules.contains(&source.module().as_str())) {
        for word in forbidden {
            for line in source.lines_with(&format!("crate::{word}")) {
                let rest = line.split(&format!("crate::{word}")).nth(1).unwrap_or_default();
                let whole_word = !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
                assert!(!whole_word, "{} knows {word}: {line}", source.name());
            }
        }
    }
}

#[test]
fn the_library_depends_in_one_direction() {
    let above_time = [
        "limit",
        "algorithm",
        "document",
        "request",
        "identity",
        "hit",
        "rule",
        "key_list",
        "ban",
        "store",
        "verdict",
        "plan",
        "policy",
        "rule_stats",
        "track",
        "engine",
        "headers",
    ];
    check_never_imports("tollgate", &["time"], &above_time);
    check_never_imports("tollgate", &["collections"], &[&["time"], &above_time[..]].concat());
    check_never_imports("tollgate", &["limit"], &above_time[1..]);
    check_never_imports("tollgate", &["algorithm"], &above_time[2..]);
    check_never_imports(
        "tollgate",
        &["request", "document"],
        &["identity", "hit", "rule", "store", "policy", "engine"],
    );
    check_never_imports("tollgate", &["identity", "rule", "ban"], &["store", "plan", "policy", "engine"]);
    check_never_imports(
        "tollgate",
        &["store"],
        &["identity", "hit", "rule", "ban", "verdict", "plan", "policy", "engine"],
    );
    check_never_imports("tollgate", &["plan", "policy", "verdict"], &["engine", "track"]);
}

#[test]
fn the_library_reads_no_clock_and_does_no_io() {
    let forbidden = [
        "SystemTime",
        "Instant::now",
        "std::fs",
        "std::net::Tcp",
        "tokio",
        "thread::spawn",
        "thread::scope",
        "thread::Builder",
        "thread::sleep",
        "thread::park",
        "println",
        "std::env",
    ];
    for source in sources("tollgate").iter().filter(|source| source.module() != "time") {
        for word in forbidden {
            assert_eq!(source.lines_with(word).next(), None, "{} uses {word}", source.name());
        }
    }
}

#[test]
fn transports_do_not_know_each_other() {
    let sources = sources("tollgate-server");
    let below =
        |source: &Source| source.path.to_string_lossy().split("/transport/").nth(1).map(str::to_owned);
    let name = |below: String| below.split(['/', '.']).next().unwrap_or_default().to_owned();
    let transports: BTreeSet<String> = sources.iter().filter_map(below).map(name).collect();
    assert!(transports.len() > 1, "{transports:?}");
    for source in &sources {
        let own = below(source).map(name);
        for other in own.iter().flat_map(|own| transports.iter().filter(move |other| *other != own)) {
            let line = source.lines_with(&format!("transport::{other}")).next().map(str::to_owned);
            assert_eq!(line, None, "{} knows {other}", source.name());
        }
    }
}

/// The server opens stores by their address. A driver is named only by what no other store can do.
#[test]
fn few_files_of_the_server_name_a_backend() {
    const BACKENDS: [&str; 7] = [
        "MemoryStore",
        "CentralStore::open",
        "counters::redis",
        "counters::memcached",
        "counters::cassandra",
        "rules::sqlite",
        "rules::postgres",
    ];
    const TYPES: [&str; 5] = ["Redis", "Memcached", "Cassandra", "Sqlite", "Postgres"];
    let is_type = |word: &str| {
        let rest = TYPES.iter().find_map(|backend| word.strip_prefix(backend));
        rest.is_some_and(|rest| rest.starts_with(char::is_uppercase))
    };
    let named = |source: &Source| {
        let lines = || source.code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = lines().flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let path = BACKENDS.into_iter().find(|word| source.lines_with(word).next().is_some());
        path.map(str::to_owned).or(words.map(str::to_owned).find(|word| is_type(word)))
    };
    // `assemble` opens the central store; the queue of requests is in a file or on Redis; the tables of Cassandra are made
    // by a command; `doctor` reads settings of Redis.
    let allowed = [
        "src/assemble.rs",
        "src/config/queue.rs",
        "src/queue.rs",
        "src/queue/redis.rs",
        "src/queue/sqlite.rs",
        "src/cli/store.rs",
        "src/cli/doctor/redis_server.rs",
    ];
    let mut found = BTreeSet::new();
    for source in sources("tollgate-server") {
        let Some(word) = named(&source) else { continue };
        let file = allowed.into_iter().find(|file| source.path.ends_with(file));
        found.insert(file.unwrap_or_else(|| panic!("{} names {word}", source.name())));
    }
    assert_eq!(found, BTreeSet::from(allowed), "files that name a backend");
}

#[test]
fn drivers_of_stores_know_neither_each_other_nor_rules() {
    let drivers = ["redis", "memcached", "cassandra"];
    let above = [
        "tollgate::internal::engine",
        "tollgate::internal::policy",
        "tollgate::internal::hit",
        "tollgate_server",
        "tollgate::internal::rule",
    ];
    check_exist("tollgate", &["engine", "policy", "hit", "rule"]);
    let mut found = BTreeSet::new();
    for source in sources("tollgate-stores") {
        let place = source.path.to_string_lossy().split("/counters/").nth(1).unwrap_or_default().to_owned();
        let own = drivers.into_iter().find(|driver| place.starts_with(driver));
        for other in drivers.into_iter().filter(|other| own.is_some_and(|own| own != *other)) {
            let line = source.lines_with(&format!("counters::{other}")).next().map(str::to_owned);
            assert_eq!(line, None, "{} knows {other}", source.name());
        }
        let rules_may_be_known = source.module() == "rules";
        for word in &above[..above.len() - usize::from(rules_may_be_known)] {
            assert_eq!(source.lines_with(word).next(), None, "{} uses {word}", source.name());
        }
        found.extend(own);
    }
    assert_eq!(found, BTreeSet::from(drivers), "drivers with sources");
}

#[test]
fn databases_of_rules_and_drivers_of_counters_do_not_know_each_other() {
    check_never_imports("tollgate-stores", &["counters"], &["rules"]);
    check_never_imports("tollgate-stores", &["rules"], &["counters"]);
    let mut found = BTreeSet::new();
    for source in sources("tollgate-stores") {
        let place = source.path.to_string_lossy().split("/rules/").nth(1).unwrap_or_default().to_owned();
        for (own, other) in [("sqlite", "rules::postgres"), ("postgres", "rules::sqlite")] {
            found.extend(place.starts_with(own).then_some(own));
            let line = source.lines_with(other).find(|_| place.starts_with(own)).map(str::to_owned);
            assert_eq!(line, None, "{} knows {other}", source.name());
        }
    }
    assert_eq!(found, BTreeSet::from(["postgres", "sqlite"]), "databases with sources");
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    for (krate, root_file, attribute) in [
        ("tollgate-stores", "lib.rs", "#![forbid(unsafe_code)]"),
        ("tollgate-client", "lib.rs", "#![forbid(unsafe_code)]"),
        ("tollgate-tower", "lib.rs", "#![forbid(unsafe_code)]"),
        ("tollgate-testkit", "lib.rs", "#![forbid(unsafe_code)]"),
        ("tollgate-server", "main.rs", "#![forbid(unsafe_code)]"),
        ("tollgate-server", "lib.rs", "#![deny(unsafe_code)]"), // but for calls of the C library
    ] {
        let sources = sources(krate);
        let root_file = sources.iter().find(|source| source.path.ends_with(format!("src/{root_file}")));
        assert!(root_file.is_some_and(|root| root.text.contains(attribute)), "{krate}: {attribute}");
        let exempt =
            sources.iter().map(|source| source.lines_with("allow(unsafe_code)").count()).sum::<usize>();
        assert!(exempt <= 1, "{krate}: {exempt} modules with unsafe code");
    }
}

#[test]
fn every_source_file_has_a_header_and_a_bounded_size() {
    for krate in ["tollgate", "tollgate-stores", "tollgate-client", "tollgate-tower", "tollgate-server"] {
        for source in sources(krate) {
            let name = source.name();
            assert!(source.text.starts_with("//! "), "{name} does not say what it is");
            let lines = source.text.lines().count();
            assert!(lines <= MAX_LINES, "{name} has {lines} lines: split it by noun");
            for word in ["todo!", "unimplemented!", "dbg!", "TODO", "FIXME"] {
                assert!(!source.text.contains(word), "{name} has a {word}");
            }
            let stem = source.path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            for word in ["util", "helper", "common", "manager", "misc"] {
                assert!(!stem.contains(word), "{name} is not named after what it holds");
            }
        }
    }
}

#[test]
fn no_text_names_the_machine_it_was_written_on() {
    let endings = [".rs", ".md", ".toml", ".yaml", "scripts/test", "scripts/deny", ".ci/run"];
    let places: Vec<String> =
        ["home", "root", "Users", "work"].iter().map(|top| format!("/{top}/")).collect();
    for path in endings.iter().flat_map(|ending| files_below(&root(), ending)) {
        let text = fs::read_to_string(&path).expect("a text can be read");
        for place in &places {
            let named = text
                .lines()
                .find(|line| line.contains(&format!(" {place}")) || line.contains(&format!("\"{place}")));
            assert_eq!(named, None, "{}", path.display());
        }
    }
}

const CRATES: [&str; 6] = [
    "tollgate",
    "tollgate-stores",
    "tollgate-client",
    "tollgate-tower",
    "tollgate-server",
    "tollgate-testkit",
];

/// The type that a line declares. Those of a trait and inside of functions are no names of their own.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let before = ["pub", "crate", "super", "in", "self", "unsafe"];
    let keyword = words.find(|word| !before.contains(word))?;
    let is_type = matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
    words.next().filter(|name| is_type && name.starts_with(char::is_uppercase))
}

/// A type name means one thing in the whole workspace; private types of the testkit are of tests. The exceptions are the
/// twin of a type under another `cfg`, and a private type that has the usual name of its field in a corner of its own.
#[test]
fn no_type_name_is_declared_twice() {
    const TWINS: [&str; 1] = ["Slot"];
    const PRIVATE: [&str; 2] = ["Target", "Value"];
    let mut public = BTreeMap::<String, Vec<String>>::new();
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for krate in CRATES {
        for source in sources(krate).iter().filter(|source| !is_test(&source.path)) {
            for line in source.code.lines() {
                let Some(name) = declared_type(line) else { continue };
                let is_public = line.trim_start().starts_with("pub");
                if is_public {
                    public.entry(name.to_owned()).or_default().push(source.name());
                }
                // An indented type without visibility belongs to a function or a trait.
                if krate != "tollgate-testkit" && (is_public || !line.starts_with(' ')) {
                    all.entry(name.to_owned()).or_default().push(source.name());
                }
            }
        }
    }
    public.retain(|name, places| places.len() > 1 && !TWINS.contains(&name.as_str()));
    all.retain(|name, places| {
        places.len() > 1 && !TWINS.contains(&name.as_str()) && !PRIVATE.contains(&name.as_str())
    });
    assert!(public.is_empty() && all.is_empty(), "{public:#?} {all:#?}");
}

/// Files that are compiled for tests only.
fn is_test(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "testing" || stem.to_string_lossy().ends_with("tests"))
}

/// Several assignments in a line pretend to be one.
#[test]
fn nothing_is_packed_into_a_tuple_to_save_a_line() {
    let is_packed = |line: &str| {
        let Some((to, from)) = line.trim().strip_suffix(';').and_then(|line| line.split_once(" = ")) else {
            return false;
        };
        let to = to.strip_prefix("let ").unwrap_or(to);
        let is = |text: &str, open, close| {
            // The bracket at the beginning is closed at the end, and not before.
            let mut depth = 0;
            let mut closed = text.char_indices().filter_map(|(at, c)| {
                depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
                (depth == 0).then_some(at)
            });
            text.starts_with(open) && text.ends_with(close) && closed.next() == Some(text.len() - 1)
        };
        let has_several = to.contains(',') && from.contains(',');
        has_several && (is(to, '(', ')') && is(from, '(', ')') || is(to, '[', ']') && is(from, '[', ']'))
    };
    assert!(is_packed("(a, b) = (b, a % b);") && is_packed("    let [a, b] = [word()?, word()?];"));
    assert!(!is_packed("let [a, b] = [1, 2].map(f);") && !is_packed("let (a, b) = split(c, d);"));
    for source in CRATES.into_iter().flat_map(sources) {
        let packed = source.code.lines().find(|line| is_packed(line));
        assert_eq!(packed, None, "{}", source.name());
    }
}

/// The types that the root of the library re-exports.
fn exported_types(lib: &Source) -> BTreeSet<&str> {
    let exports = lib.code.split("\npub use ").skip(1).map(|rest| rest.split(';').next().unwrap_or_default());
    let names = exports.flat_map(|list| list.split(|c: char| !c.is_alphanumeric() && c != '_'));
    names.filter(|name| name.starts_with(char::is_uppercase)).collect()
}

/// The compiler cannot check only what is exported: the hidden module exports the rest. So every exported type, and each
/// block of its public functions, has the attribute, or its module has.
#[test]
fn what_is_exported_must_be_documented() {
    const ATTRIBUTE: &str = "#[deny(missing_docs)]";
    let sources = sources("tollgate");
    let lib =
        sources.iter().find(|source| source.path.ends_with("src/lib.rs")).expect("the crate has a root");
    let types = exported_types(lib);
    let modules = lib.code.split(ATTRIBUTE).skip(1).filter_map(|rest| rest.trim_start().lines().next());
    let modules: BTreeSet<&str> = modules
        .map(|line| line.trim_start_matches("pub ").trim_start_matches("mod ").trim_end_matches(';'))
        .collect();
    assert!(modules.contains("api") && modules.contains("limiter"), "{modules:?}");
    let mut found = BTreeSet::new();
    for source in sources.iter().filter(|source| !modules.contains(&*source.module())) {
        let lines: Vec<&str> = source.code.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let is_type = line.starts_with("pub struct ") || line.starts_with("pub enum ");
            let block = lines[n..].iter().take_while(|line| **line != "}");
            let has_public =
                || block.clone().any(|line| line.starts_with("    pub ") && line.contains("fn "));
            let is_block = line.starts_with("impl ") && !line.contains(" for ") && has_public();
            let Some(name) = words.iter().find(|word| types.contains(**word)).filter(|_| is_type || is_block)
            else {
                continue;
            };
            if is_block && words.get(1) != Some(name) {
                continue; // an argument of another type
            }
            let before = lines[..n].iter().rev();
            let mut attributes = before.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
            assert!(attributes.any(|line| *line == ATTRIBUTE), "{}: {line}", source.name());
            found.insert(*name);
        }
    }
    assert!(found.len() > 3, "{found:?}");
}

/// Public is what the root re-exports; the rest is in the one hidden module. Counted are the types that the root
/// re-exports and their own public functions and constants: not fields, variants and implementations of traits, nor the
/// pages of `guide`.
#[test]
fn the_public_api_is_small_and_hides_one_module_only() {
    const MAX_ITEMS: usize = 120;
    let sources = sources("tollgate");
    let hidden = sources.iter().flat_map(|source| source.lines_with("doc(hidden)")).count();
    let lib =
        sources.iter().find(|source| source.path.ends_with("src/lib.rs")).expect("the crate has a root");
    let types = exported_types(lib);
    let mut items = types.len();
    for source in &sources {
        let mut of_public_type = false;
        for line in source.code.lines() {
            if line.starts_with("impl") {
                let name = line.split(['<', ' ', '{']).find(|word| word.starts_with(char::is_uppercase));
                of_public_type = !line.contains(" for ") && name.is_some_and(|name| types.contains(name));
            }
            let is_public = ["    pub fn ", "    pub const ", "    pub async "]
                .iter()
                .any(|start| line.starts_with(start));
            items += usize::from(of_public_type && is_public);
        }
    }
    assert!((80..=MAX_ITEMS).contains(&items), "{items} public items");
    assert_eq!(hidden, 1, "the module `internal`");
}

/// A program that embeds the library compiles these. ARCHITECTURE.md says why each is there.
#[test]
fn the_library_has_a_handful_of_dependencies() {
    let required = [
        "arc-swap",
        "hashbrown",
        "ipnet",
        "memmap2",
        "percent-encoding",
        "portable-atomic",
        "saphyr-parser",
        "siphasher",
        "smallvec",
        "thiserror",
    ];
    let optional = ["base64", "http", "ring"];
    let manifest = fs::read_to_string(root().join("crates/tollgate/Cargo.toml")).expect("it can be read");
    let list = manifest.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next());
    let lines: Vec<&str> = list.expect("a list").lines().filter(|line| !line.is_empty()).collect();
    let names = |is_optional: bool| {
        let chosen = lines.iter().filter(move |line| line.contains("optional = true") == is_optional);
        chosen.map(|line| line.split(' ').next().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(names(false), required);
    assert_eq!(names(true), optional);
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it can be read");
    for name in required {
        assert!(architecture.contains(&format!("`{name}`")), "ARCHITECTURE.md does not say why {name}");
    }
    assert!(manifest.contains("default-features = false") && !manifest.contains("\ndefault = ["));
    for line in lines {
        assert!(line.contains("default-features = false"), "{line}");
    }
}

/// Every file and folder of the repository, relative to its root and without `.rs`.
fn tree() -> Vec<String> {
    let mut found = BTreeSet::new();
    for file in files_below(&root(), "") {
        let path = file.strip_prefix(root()).expect("the file is below the root").with_extension("");
        let with_extension = file.strip_prefix(root()).expect("the file is below the root").to_owned();
        for entry in path.ancestors().chain([with_extension.as_path()]) {
            found.insert(entry.display().to_string());
        }
    }
    found.into_iter().collect()
}

/// `a/{b,c}` as `a/b` and `a/c`.
fn expand_braces(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        None => vec![path.to_owned()],
        Some((before, (choices, after))) => {
            choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
        }
    }
}

/// Whether a path ends with these components.
fn is_in(tree: &[String], path: &str) -> bool {
    let path = path.trim_end_matches('/').trim_end_matches(".rs");
    let suffix = format!("/{path}");
    tree.iter().any(|entry| entry == path || entry.ends_with(&suffix))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The rows of the code map: names, and a description with its continuation lines.
fn map_rows(map: &str) -> Vec<(&str, String)> {
    const MAX_INDENT: usize = 12;
    let mut rows: Vec<(&str, String)> = Vec::new();
    for line in map.lines().filter(|line| line.starts_with("    ")) {
        let text = line.trim_start();
        let (names, description) = text.split_once("  ").unwrap_or((text, ""));
        match rows.last_mut() {
            Some((_, begun)) if line.len() - text.len() >= MAX_INDENT => {
                begun.push(' ');
                begun.push_str(text);
            }
            _ => rows.push((names, description.trim_start().to_owned())),
        }
    }
    rows
}

/// Names of modules in a description: words with an underscore, and those that a parenthesis explains, as in
/// `head items (a row)`, unless they are part of a sentence.
fn described_modules(description: &str) -> Vec<&str> {
    const OF_SENTENCES: [&str; 10] = ["a", "and", "for", "from", "in", "of", "that", "the", "to", "with"];
    let is_path =
        |word: &str| !word.is_empty() && word.split('/').all(|part| is_name(part) && part.is_ascii());
    let words = description.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '/');
    let mut modules: Vec<&str> = words.filter(|word| word.contains('_') && is_path(word)).collect();
    for before in description.match_indices('(').map(|(at, _)| &description[..at]) {
        let explained = before.rsplit(['(', ')', ',', ':', ';']).next().unwrap_or_default();
        let explained: Vec<&str> = explained.split_whitespace().collect();
        let is_sentence = |word: &&str| OF_SENTENCES.contains(word) || !is_path(word);
        if !explained.iter().any(is_sentence) {
            modules.extend(explained);
        }
    }
    modules
}

#[test]
fn modules_are_told_from_sentences_about_them() {
    let map = "    above below     text from outside (a log), wire pool\n                    ring (one call), odd_one\n";
    let rows = map_rows(map);
    assert_eq!(rows[0].0, "above below");
    assert_eq!(described_modules(&rows[0].1), ["odd_one", "wire", "pool", "ring"]);
}

/// ARCHITECTURE.md went stale with every rename: its paths, types and functions are looked up here.
#[test]
fn the_architecture_names_what_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document can be read");
    let tree = tree();
    let crates = ["tollgate", "tollgate-stores", "tollgate-client", "tollgate-tower", "tollgate-server"];
    let words: Vec<(String, std::collections::HashSet<String>)> = crates
        .into_iter()
        .flat_map(sources)
        .map(|source| {
            let words = source.text.split(|c: char| !c.is_alphanumeric() && c != '_');
            let stem = source.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (stem, words.map(str::to_owned).collect())
        })
        .collect();
    let mut missing = Vec::new();

    // Paths, `Type::item` and types in backticks.
    for quoted in text.split('`').skip(1).step_by(2) {
        let item = quoted.split(['(', '<']).next().unwrap_or_default();
        let exists = if quoted.starts_with('/') || quoted.contains(' ') {
            true // a route, or an expression
        } else if let Some((owner, name)) = item.rsplit_once("::") {
            let owner = owner.rsplit("::").next().unwrap_or_default();
            !is_name(owner)
                || words.iter().any(|(stem, words)| {
                    words.contains(name) && (words.contains(owner) || stem.as_str() == owner)
                })
        } else if quoted.contains('/') {
            expand_braces(quoted).iter().all(|path| is_in(&tree, path))
        } else if is_name(item) && item.starts_with(char::is_uppercase) {
            words.iter().any(|(_, words)| words.contains(item))
        } else {
            true
        };
        if !exists {
            missing.push(quoted.to_owned());
        }
    }

    // The code map: names of files and folders.
    let map = text.split("## Code map").nth(1).and_then(|rest| rest.split("\n## ").next());
    for (names, description) in map_rows(map.expect("there is a code map")) {
        let named = names.split(' ').chain(described_modules(&description));
        missing.extend(named.filter(|name| !is_in(&tree, name)).map(str::to_owned));
    }
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:#?}");
}

/// The names in brackets.
fn bracketed(text: &str) -> impl Iterator<Item = String> + '_ {
    let lists = text.split(['[', ']']).skip(1).step_by(2);
    lists.flat_map(|list| list.split(',').map(|name| name.split_whitespace().collect()))
}

/// The files that one has to open to follow a request: stated, and counted here.
#[test]
fn the_lives_of_a_request_name_as_many_files_as_they_say() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document can be read");
    let lives = text.split("## The life of a request").nth(1).and_then(|rest| rest.split("\n## ").next());
    let tree = tree();
    let mut counted = 0;
    for life in lives.expect("there is such a section").split("\n**").skip(1) {
        let (title, steps) = life.split_once("**").expect("a title in bold");
        let stated = title.split(' ').find_map(|word| word.parse().ok()).expect("the number of files");
        let steps: Vec<&str> = steps.lines().filter(|line| line.starts_with("    ")).collect();
        let begins = |line: &&&str| !line.starts_with(&" ".repeat(12));
        let firsts = steps.iter().filter(begins).filter_map(|line| line.split_whitespace().next());
        let mut files: BTreeSet<String> = firsts.map(str::to_owned).collect();
        files.extend(bracketed(&steps.join(" ")));
        for file in &files {
            assert!(is_in(&tree, file), "{title}: there is no {file}");
        }
        assert_eq!(files.len(), stated, "{title}: {files:#?}");
        counted += 1;
    }
    assert_eq!(counted, 2, "the decision API and the proxy");
}

#[test]
fn the_architecture_has_lines_of_a_screen() {
    const MAX_COLUMNS: usize = 130;
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document can be read");
    for line in text.lines().filter(|line| !line.starts_with('|')) {
        assert!(line.chars().count() <= MAX_COLUMNS, "{line}");
    }
}
