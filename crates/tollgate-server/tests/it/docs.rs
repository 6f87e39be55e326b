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

#[test]
fn every_key_of_the_configuration_is_documented() {
    let code = all_below("crates/tollgate-server/src/config", ".rs")
        + &read("crates/tollgate-server/src/config.rs")
        + &all_below("crates/tollgate/src/rule", ".rs")
        + &all_below("crates/tollgate/src/policy", ".rs");
    let docs = read("docs/configuration.md") + &read("docs/proxy.md") + &read("docs/algorithms.md");
    let readers = ["", "_text", "_map", "_list", "_choice", "_bool", "_number", "_duration"];
    let keys: BTreeSet<_> = ["optional", "required"]
        .iter()
        .flat_map(|kind| readers.iter().map(move |reader| format!(".{kind}{reader}(\"")))
        .flat_map(|before| quoted_after(&code, &before))
        .collect();
    assert!(keys.len() > 60, "{keys:?}");
    let is_documented = |key: &str| {
        let forms = [format!("`{key}`"), format!(".{key}`"), format!("{key}:"), format!(" {key} ")];
        forms.iter().any(|form| docs.contains(form.as_str()))
    };
    let missing: Vec<_> = keys.iter().filter(|key| !is_documented(key)).collect();
    assert!(missing.is_empty(), "keys that no page names: {missing:?}");
}
