//! The server's log: lines on stderr, whose level and format change while it runs.
//!
//! One event is one line without control characters, whatever a client put into a value. So text has no colours: their
//! escape sequences could not be told from those of a client.

use std::io;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{error, fmt};

use tollgate::internal::lock;

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
}

/// The least severe lines that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

pub const LEVELS: [(&str, LogLevel); 4] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
];
pub const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

impl LogLevel {
    pub fn name(self) -> &'static str {
        name_in(&LEVELS, self)
    }

    fn filter(self) -> LevelFilter {
        match self {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        }
    }

    /// Dependencies write at most their warnings: at `debug` HTTP/2 would log every frame.
    fn targets(self) -> Targets {
        let others = self.filter().min(LevelFilter::WARN);
        Targets::new().with_target("tollgate", self.filter()).with_default(others)
    }
}

impl LogFormat {
    pub fn name(self) -> &'static str {
        name_in(&FORMATS, self)
    }
}

fn name_in<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, named)| *named == value).map_or("", |(name, _)| name)
}

/// The log of this process.
struct InstalledLog {
    targets: Handle<Targets, Registry>,
    settings: Mutex<LogSettings>,
}

static INSTALLED: OnceLock<InstalledLog> = OnceLock::new();
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Sends the log to stderr, with the default settings.
pub fn install() {
    let settings = LogSettings::default();
    let (targets, handle) = reload::Layer::new(settings.level.targets());
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).event_format(LineFormat::new());
    // Fails harmlessly if a subscriber is installed already, by an earlier call of a test.
    if tracing_subscriber::registry().with(targets).with(lines).try_init().is_ok() {
        INSTALLED.set(InstalledLog { targets: handle, settings: Mutex::new(settings) }).ok();
    }
}

/// The settings in force.
pub fn settings() -> LogSettings {
    let installed = INSTALLED.get();
    installed.map(|log| *lock(&log.settings)).unwrap_or_default()
}

pub fn set(settings: LogSettings) {
    let Some(log) = INSTALLED.get() else { return };
    let mut in_force = lock(&log.settings);
    IS_JSON.store(settings.format == LogFormat::Json, Ordering::Relaxed);
    if let Err(error) = log.targets.reload(settings.level.targets()) {
        tracing::error!(error = &error as &dyn error::Error, "the level of the log cannot be changed");
        return;
    }
    *in_force = settings;
}

/// Text or JSON, as the settings in force say.
struct LineFormat {
    text: Format,
    json: Format<Json>,
}

impl LineFormat {
    fn new() -> LineFormat {
        LineFormat {
            text: Format::default().with_target(false).with_ansi(false),
            json: Format::default()
                .json()
                .flatten_event(true)
                .with_target(false)
                .with_current_span(false)
                .with_span_list(false),
        }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if IS_JSON.load(Ordering::Relaxed) {
            return self.json.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.text.format_event(context, Writer::new(&mut line), event)?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        for letter in line.chars() {
            match letter.is_control() {
                true => write!(writer, "{}", letter.escape_default())?,
                false => writer.write_char(letter)?,
            }
        }
        writer.write_char('\n')
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Lines;

        fn make_writer(&'a self) -> Lines {
            self.clone()
        }
    }

    const HOSTILE: &str = "\"}\r\n2026 ERROR forged \u{1b}[31m\u{0}\u{2028}\\";

    #[test]
    fn a_value_of_a_client_stays_within_its_line() {
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(lines.clone());
        let subscriber = tracing_subscriber::registry().with(layer.event_format(LineFormat::new()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(caller = HOSTILE, path = %HOSTILE, "refused: {HOSTILE}");
            IS_JSON.store(true, Ordering::Relaxed);
            tracing::warn!(caller = HOSTILE, path = %HOSTILE, "refused: {HOSTILE}");
            IS_JSON.store(false, Ordering::Relaxed);
        });
        let text = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("UTF-8");
        let written: Vec<_> = text.lines().collect();
        assert_eq!(written.len(), 2, "{text}");
        assert!(!written[0].contains(['\r', '\u{1b}']), "{}", written[0]);
        let json: serde_json::Value = serde_json::from_str(written[1]).expect("JSON");
        assert_eq!(
            (&json["level"], &json["caller"], &json["path"]),
            (&"WARN".into(), &HOSTILE.into(), &HOSTILE.into())
        );
        assert_eq!(json["message"], format!("refused: {HOSTILE}"));
    }

    #[test]
    fn dependencies_write_warnings_only() {
        let debug = LogLevel::Debug.targets();
        assert!(debug.would_enable("tollgate_server::gate", &tracing::Level::DEBUG));
        assert!(debug.would_enable("h2", &tracing::Level::WARN));
        assert!(!debug.would_enable("h2", &tracing::Level::INFO));
        assert!(!LogLevel::Error.targets().would_enable("h2", &tracing::Level::WARN));
    }
}
