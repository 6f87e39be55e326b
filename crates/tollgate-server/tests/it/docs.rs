//! The documentation names what the code has, and nothing else: metrics, routes, keys of the configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of all files with an ending below a folder, their unit tests left out.
fn all_below(folder: &str, ending: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be listed") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let file = fs::read_to_string(&path).expect("a file can be read");
                text += file.split("\nmod tests {").next().unwrap_or_default();
            }
        }
    }
    text
}

/// Names in backticks that begin with `prefix`.
fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let starts =
        text.match_indices('`').map(|(at, _)| &text[at + 1..]).filter(|rest| rest.starts_with(prefix));
    starts.map(|rest| rest.chars().take_while(|letter| is_name(*letter)).collect()).collect()
}

/// What stands between `before` and the next quotation mark, wherever that occurs.
fn quoted_after(text: &str, before: &str) -> BTreeSet<String> {
    let rests = text.match_indices(before).map(|(at, found)| &text[at + found.len()..]);
    rests.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

fn check_same(what: &str, code: &BTreeSet<String>, docs: &BTreeSet<String>) {
    let undocumented: Vec<_> = code.difference(docs).collect();
    let unknown: Vec<_> = docs.difference(code).collect();
    assert!(undocumented.is_empty(), "{what} that no page names: {undocumented:?}");
    assert!(unknown.is_empty(), "{what} that pages name and the code does not have: {unknown:?}");
}

#[test]
fn every_metric_is_documented() {
    let code = all_below("crates/tollgate-server/src/metrics", ".rs")
        + &read("crates/tollgate-server/src/metrics.rs");
    let metrics = quoted_after(&code, "\"tollgate_").iter().map(|rest| format!("tollgate_{rest}")).collect();
    let pages = read("docs/operations.md") + &read("docs/rules-db.md");
    let docs = names(&pages, "tollgate_");
    check_same("metrics", &metrics, &docs);
    check_same("metrics", &metrics, &names(&read("docs/reference/metrics.md"), "tollgate_"));
}

#[test]
fn the_page_on_envoy_shows_the_configurations_that_are_tested() {
    let page = read("docs/envoy.md");
    for file in ["ratelimit.yaml", "ext-authz.yaml"] {
        let tested = read(Path::new("examples/envoy").join(file));
        assert!(
            page.contains(&format!("```yaml file={file}\n{tested}```\n")),
            "docs/envoy.md differs from {file}"
        );
    }
}

#[test]
fn every_route_of_the_admin_api_is_documented() {
    let code = read("crates/tollgate-server/src/admin/router.rs");
    let code = code.split("\nmod tests {").next().unwrap_or_default();
    let docs = read("docs/admin-api.md") + &read("docs/operations.md");
    let routes = quoted_after(code, "\"/v1/");
    assert!(routes.len() > 15, "{routes:?}");
    for route in routes {
        assert!(docs.contains(&format!("/v1/{route}")), "no page names /v1/{route}");
    }
}

#[test]
fn every_route_of_the_decision_api_is_documented() {
    let code = read("crates/tollgate-server/src/transport/http.rs");
    let docs = read("docs/decision-api.md");
    for method in ["GET", "POST"] {
        let routes = quoted_after(&code, &format!("(\"{method}\", \""));
        assert!(!routes.is_empty(), "no routes with {method}");
        for route in routes {
            assert!(docs.contains(&format!("## {method} {route}\n")), "no section on {method} {route}");
        }
    }
}

/// Keys that a page names as such: with a value in code (`key: 1`), or alone in backticks (`key`, `map.key`).
fn keys_in<'p>(page: &'p str) -> BTreeSet<&'p str> {
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let with_value = |code: &'p str| {
        let before = code.match_indices(':').map(move |(at, _)| &code[..at]);
        before.filter_map(move |before| before.rsplit(|letter| !is_name(letter)).next())
    };
    let mut keys = BTreeSet::new();
    for (n, text) in page.split("```").enumerate() {
        if n % 2 == 1 {
            let lines = text.lines().filter_map(|line| line.split('#').next());
            keys.extend(lines.flat_map(with_value));
        } else {
            for span in text.split('`').skip(1).step_by(2) {
                keys.extend(with_value(span));
                let is_path = span.chars().all(|letter| is_name(letter) || letter == '.');
                keys.extend(span.rsplit('.').next().filter(|_| is_path));
            }
        }
    }
    keys.remove("");
    keys
}

/// The reference is generated by the parser itself; what it lists is explained in a page.
#[test]
fn every_key_of_the_configuration_is_documented() {
    let code = all_below("crates/tollgate-server/src/config", ".rs")
        + &read("crates/tollgate-server/src/config.rs")
        + &all_below("crates/tollgate/src/rule", ".rs")
        + &all_below("crates/tollgate/src/policy", ".rs");
    let readers = ["", "_text", "_map", "_list", "_choice", "_bool", "_number", "_duration"];
    let read_by_name: BTreeSet<_> = ["optional", "required"]
        .iter()
        .flat_map(|kind| readers.iter().map(move |reader| format!(".{kind}{reader}(\"")))
        .flat_map(|before| quoted_after(&code, &before))
        .collect();
    assert!(read_by_name.len() > 60, "{read_by_name:?}");

    let reference = read("docs/reference/configuration.md");
    let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let keys: BTreeSet<String> = rows.map(str::to_owned).collect();
    let unlisted: Vec<_> = read_by_name.difference(&keys).collect();
    assert!(unlisted.is_empty(), "keys that docs/reference does not list: {unlisted:?}");

    let pages = ["docs/configuration.md", "docs/proxy.md", "docs/algorithms.md"].map(read);
    let documented: BTreeSet<&str> = pages.iter().flat_map(|page| keys_in(page)).collect();
    let missing: Vec<_> = keys.iter().filter(|key| !documented.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "keys that no page names: {missing:?}");
}

#[test]
fn a_word_of_a_sentence_documents_no_key() {
    let page =
        "The cost is all: `rate` and `limit.burst`.\n```yaml\nrules: [{ every: 1s }] # for `all`\n```\n";
    assert_eq!(keys_in(page), BTreeSet::from(["burst", "every", "rate", "rules"]));
}
