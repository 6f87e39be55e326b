//! Which limits fit the memory of counters.

use tollgate::internal::EngineSetup;
use tollgate::internal::rule::Rule;

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
}
