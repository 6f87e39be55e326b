//! Rate limit of log lines that clients can cause.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tollgate::internal::lock;

const WINDOW: Duration = Duration::from_secs(10);
/// Lines per window; further ones are only counted.
const MAX_LINES: u32 = 60;

/// A fixed window of log lines of one kind.
#[derive(Default)]
pub struct LogLimiter(Mutex<LogWindow>);

#[derive(Default)]
struct LogWindow {
    start: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

/// Permission to log a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPermit {
    /// Lines suppressed before this one.
    pub suppressed: u64,
    /// Further lines are suppressed until the window ends.
    pub is_last: bool,
}

impl LogLimiter {
    /// `None` if the window has no lines left.
    pub fn permit(&self) -> Option<LogPermit> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<LogPermit> {
        let mut window = lock(&self.0);
        let is_over = window.start.is_none_or(|start| now.saturating_duration_since(start) >= WINDOW);
        if is_over {
            window.start = Some(now);
            window.lines = 0;
        }
        if window.lines == MAX_LINES {
            window.suppressed += 1;
            return None;
        }
        window.lines += 1;
        let suppressed = std::mem::take(&mut window.suppressed);
        Some(LogPermit { suppressed, is_last: window.lines == MAX_LINES })
    }

    /// Logs through `line`, and adds how many lines were suppressed.
    pub fn warn(&self, what: &str, line: impl FnOnce()) {
        let Some(LogPermit { suppressed, is_last }) = self.permit() else { return };
        if suppressed > 0 {
            tracing::warn!(suppressed, "{what}: log lines were suppressed");
        }
        line();
        if is_last {
            tracing::warn!("{what}: more of these are counted, not logged, for up to {} s", WINDOW.as_secs());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_a_bounded_number_of_lines_and_the_next_one_counts_the_suppressed() {
        let rate = LogLimiter::default();
        let start = Instant::now();
        let permits: Vec<_> = (0..1_000).map(|_| rate.permit_at(start)).collect();
        assert_eq!(permits.iter().flatten().count(), MAX_LINES as usize);
        assert!(permits[MAX_LINES as usize - 1].is_some_and(|permit| permit.is_last));
        let next = rate.permit_at(start + WINDOW);
        assert_eq!(next, Some(LogPermit { suppressed: 1_000 - u64::from(MAX_LINES), is_last: false }));
        assert_eq!(rate.permit_at(start + WINDOW), Some(LogPermit { suppressed: 0, is_last: false }));
    }
}
