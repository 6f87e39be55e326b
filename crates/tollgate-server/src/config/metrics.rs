//! Names of metrics: `metrics`.

use tollgate::internal::document::MapReader;

use crate::metrics::CompatNames;

/// The other rate limiters in `metrics: { compat: [envoy, limitador] }`.
pub(super) fn read_compat(map: &mut MapReader<'_, '_>) -> Vec<CompatNames> {
    let Some(mut map) = map.optional_map("metrics") else { return Vec::new() };
    let mut names = Vec::new();
    for (n, node) in map.optional_list("compat").unwrap_or_default().iter().enumerate() {
        let word = node.as_str().unwrap_or_default();
        match CompatNames::ALL.iter().find(|(name, _)| *name == word) {
            Some((_, known)) => names.push(*known),
            None => map.reject(&format!("compat[{n}]"), node, "expected envoy or limitador"),
        }
    }
    map.finish();
    names
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn check(text: &str) -> Result<Vec<CompatNames>, String> {
        let config = Config::parse(text, Path::new(""));
        config.map(|config| config.compat_names).map_err(|problems| problems.to_string())
    }

    #[test]
    fn names_of_other_rate_limiters_are_chosen() {
        assert_eq!(check("{}"), Ok(Vec::new()));
        let both = Ok(vec![CompatNames::Limitador, CompatNames::Envoy]);
        assert_eq!(check("metrics: { compat: [limitador, envoy] }"), both);
        let error = check("metrics: { compat: [envoy, nginx] }").expect_err("unknown");
        assert!(error.contains("metrics.compat[1]") && error.contains("envoy or limitador"), "{error}");
        let error = check("metrics: { compatt: [] }").expect_err("unknown");
        assert!(error.contains("did you mean 'compat'?"), "{error}");
    }
}
