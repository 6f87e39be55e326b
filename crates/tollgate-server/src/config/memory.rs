//! The memory of counters: its size, what happens when it is full, and which limits fit.

use tollgate::internal::EngineSetup;
use tollgate::internal::document::MapReader;
use tollgate::internal::rule::Rule;
use tollgate::internal::store::memory::MemoryFull;

use super::size;

const DEFAULT_BYTES: usize = 1 << 30;
const WHEN_FULL: [(&str, MemoryFull); 3] =
    [("aggregate", MemoryFull::Aggregate), ("open", MemoryFull::Open), ("closed", MemoryFull::Closed)];

pub(super) fn read_bytes(map: &mut MapReader<'_, '_>) -> usize {
    let Some(node) = map.optional("memory") else { return DEFAULT_BYTES };
    let read = node.as_str().ok_or("expected a size such as 1GiB".to_owned()).and_then(size::parse);
    read.map_err(|message| map.reject("memory", node, message)).unwrap_or(DEFAULT_BYTES)
}

pub(super) fn read_when_full(map: &mut MapReader<'_, '_>) -> MemoryFull {
    map.optional_choice("memory_full", &WHEN_FULL).unwrap_or_default()
}

/// Which limit of a rule does not fit the memory, and how much memory it needs.
pub fn unsupported_reason(memory_bytes: usize, rule: &Rule) -> Option<String> {
    rule.all_limits().find_map(|each| {
        let least = EngineSetup::min_memory_for(&each.limit);
        (least > memory_bytes).then(|| {
            format!(
                "a key at limit {} of rule {} ({}) does not fit: set memory to {}MiB or more, or use sliding-counter or gcra",
                each.limit,
                rule.id,
                each.limit.shape().name(),
                least >> 20
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn check(memory: &str, counters: &str, limit: &str) -> Result<(), String> {
        let rule = format!("{{id: big, key: user, limit: {limit}, algorithm: sliding-log}}");
        let text = format!("memory: {memory}\ncounters: {counters}\nrules:\n  - {rule}\n");
        let mut config = Config::parse(&text, Path::new("/etc")).map_err(|problems| problems.to_string())?;
        config.take_policy().map(drop).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_limit_that_does_not_fit_is_rejected_with_the_memory_that_would_do() {
        // Regression: 100,000/h at 8 MiB and 1 M/h at 64 MiB were never limited.
        for (memory, limit) in [("8MiB", "100000/h"), ("64MiB", "1000000/h")] {
            let error = check(memory, "memory", limit).expect_err("it does not fit");
            let least = error.split("set memory to ").nth(1).and_then(|rest| rest.split(' ').next());
            let least = least.expect("the memory that would do is named");
            assert!(error.contains("memory") && error.contains("big"), "{error}");
            assert_eq!(check(least, "memory", limit), Ok(()));
        }
        assert_eq!(check("1MiB", "memory", "500/h"), Ok(()));
        assert_eq!(check("8MiB", "redis://127.0.0.1:1", "100000/h"), Ok(()), "it is not kept here");
    }

    #[test]
    fn what_happens_when_memory_is_full_can_be_chosen() {
        let read = |text: &str| Config::parse(text, Path::new("/etc")).map(|config| config.memory_full);
        assert_eq!(read("rules: []").expect("it is valid"), MemoryFull::Aggregate);
        assert_eq!(read("memory_full: closed").expect("it is valid"), MemoryFull::Closed);
        assert!(read("memory_full: maybe").is_err());
    }
}
