//! The level and the format of the log: `log`.

use tollgate::internal::document::MapReader;

use crate::log::{FORMATS, LEVELS, LogSettings};

pub(super) fn read(map: &mut MapReader<'_, '_>) -> LogSettings {
    let Some(mut map) = map.optional_map("log") else { return LogSettings::default() };
    let level = map.optional_choice("level", &LEVELS).unwrap_or_default();
    let format = map.optional_choice("format", &FORMATS).unwrap_or_default();
    map.finish();
    LogSettings { level, format }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::log::{LogFormat, LogLevel};

    #[test]
    fn level_and_format_are_words() {
        let read = |text: &str| {
            let config = Config::parse(text, Path::new("/etc"));
            config.map(|config| config.log).map_err(|problems| problems.to_string())
        };
        assert_eq!(read("log: {}"), Ok(LogSettings::default()));
        let quiet = LogSettings { level: LogLevel::Error, format: LogFormat::Json };
        assert_eq!(read("log: { level: error, format: json }"), Ok(quiet));
        let error = read("log: { level: trace }").expect_err("no such level");
        assert!(error.contains("log.level: unknown value 'trace': use error, warn, info, debug"), "{error}");
    }
}
