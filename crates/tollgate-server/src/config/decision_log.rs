//! The decision log: `decision_log`.

use std::path::Path;

use tollgate::internal::document::MapReader;

use crate::decision_log::{DecisionLogConfig, LogTarget, Sample};

/// `None` if it is off.
pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path) -> Option<DecisionLogConfig> {
    let mut map = map.optional_map("decision_log")?;
    let to = match map.optional_text("to") {
        None | Some("off") => None,
        Some("stderr") => Some(LogTarget::Stderr),
        Some(file) => Some(LogTarget::File(folder.join(file))),
    };
    let sample = match map.optional("sample") {
        None => Sample::Denied,
        Some(node) => node.as_str().and_then(parse_sample).unwrap_or_else(|| {
            map.reject("sample", node, "expected denied, all, or a percentage of the keys from 1% to 100%");
            Sample::Denied
        }),
    };
    map.finish();
    to.map(|to| DecisionLogConfig { to, sample })
}

fn parse_sample(text: &str) -> Option<Sample> {
    match text {
        "denied" => Some(Sample::Denied),
        "all" => Some(Sample::All),
        text => {
            let percent = text.strip_suffix('%')?.parse().ok()?;
            (1..=100).contains(&percent).then_some(Sample::Keys(percent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn check(text: &str) -> Result<Option<DecisionLogConfig>, String> {
        let config = Config::parse(&format!("decision_log: {text}"), Path::new("/etc"));
        config.map(|config| config.decision_log).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_decision_log_is_off_unless_it_has_a_target() {
        let log = |to: LogTarget, sample| Ok(Some(DecisionLogConfig { to, sample }));
        for off in ["{}", "{ to: off }", "{ sample: all }", "{ to: off, sample: 1% }"] {
            assert_eq!(check(off), Ok(None), "{off}");
        }
        assert_eq!(check("{ to: stderr }"), log(LogTarget::Stderr, Sample::Denied));
        assert_eq!(
            check("{ to: d.ndjson, sample: 1% }"),
            log(LogTarget::File("/etc/d.ndjson".into()), Sample::Keys(1))
        );
        assert_eq!(check("{ to: /d, sample: all }"), log(LogTarget::File("/d".into()), Sample::All));
        for bad in ["0%", "101%", "1.5%", "most", "-1%", "7"] {
            let error = check(&format!("{{ to: stderr, sample: {bad} }}")).expect_err(bad);
            assert!(error.contains("decision_log.sample"), "{error}");
        }
        assert!(check("{ too: stderr }").expect_err("unknown").contains("did you mean 'to'?"));
    }
}
