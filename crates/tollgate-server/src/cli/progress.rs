//! Progress of a long command on stderr: a bar on a terminal, a plain line now and then elsewhere.
//!
//! A command reports its position ([`Progress::step`], [`Progress::at`]); a thread of its own draws, so that the
//! display stays alive during blocking work. Nothing is drawn for short work.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

/// Redraw interval on a terminal.
const FRAME: Duration = Duration::from_millis(100);
/// Work that ends sooner is not shown on a terminal.
const QUIET: Duration = Duration::from_millis(300);
/// Interval of lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const USUAL_WIDTH: usize = 80;
const BAR_WIDTH: usize = 24;

/// Shown until it is dropped, which clears the bar.
pub struct Progress {
    shown: Arc<Shown>,
    drawing: Option<JoinHandle<()>>,
}

struct Shown {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    step: Step,
    has_ended: bool,
}

/// One part of the work.
#[derive(Clone)]
struct Step {
    what: String,
    since: Instant,
    done: u64,
    /// The number of bytes, if known.
    total: Option<u64>,
}

impl Progress {
    /// Starts the first part of the work, of `total` bytes if known.
    pub fn start(what: impl Into<String>, total: Option<u64>) -> Progress {
        let step = Step::new(what.into(), total);
        let state = Mutex::new(State { step, has_ended: false });
        let shown = Arc::new(Shown { state, ended: Condvar::new() });
        let drawn = Arc::clone(&shown);
        // If the thread cannot be started, nothing is drawn and the work goes on.
        let drawing = std::thread::Builder::new().spawn(move || draw(&drawn)).ok();
        Progress { shown, drawing }
    }

    /// Starts the next part of the work.
    pub fn step(&self, what: impl Into<String>) {
        self.shown.lock().step = Step::new(what.into(), None);
    }

    /// Sets the number of bytes done.
    pub fn at(&self, done: u64) {
        self.shown.lock().step.done = done;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shown.lock().has_ended = true;
        self.shown.ended.notify_all();
        if let Some(drawing) = self.drawing.take() {
            drawing.join().ok();
        }
    }
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Step {
    fn new(what: String, total: Option<u64>) -> Step {
        Step { what, since: Instant::now(), done: 0, total }
    }
}

fn draw(shown: &Shown) {
    let stderr = std::io::stderr();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let mut painter = Painter::new(stderr.is_terminal() && !is_dumb, Instant::now());
    let mut state = shown.lock();
    while !state.has_ended {
        let step = state.step.clone();
        drop(state);
        let width = tcgetwinsize(&stderr).map_or(0, |size| usize::from(size.ws_col));
        if let Some(picture) = painter.paint(&step, Instant::now(), width) {
            write!(stderr.lock(), "{picture}").ok();
        }
        let waited = shown.ended.wait_timeout_while(shown.lock(), FRAME, |state| !state.has_ended);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(state);
    write!(stderr.lock(), "{}", painter.end()).ok();
}

/// Decides what is drawn when; the time is passed in.
struct Painter {
    is_terminal: bool,
    /// The start, then the time of the last drawing.
    last: Instant,
    has_drawn: bool,
}

impl Painter {
    fn new(is_terminal: bool, now: Instant) -> Painter {
        Painter { is_terminal, last: now, has_drawn: false }
    }

    /// The text to write now, if any. A width of 0 means unknown.
    fn paint(&mut self, step: &Step, now: Instant, width: usize) -> Option<String> {
        let pause = match (self.is_terminal, self.has_drawn) {
            (false, _) => LINE_EVERY,
            (true, false) => QUIET,
            (true, true) => Duration::ZERO,
        };
        if now.saturating_duration_since(self.last) < pause {
            return None;
        }
        self.last = now;
        self.has_drawn = true;
        let since = now.saturating_duration_since(step.since);
        if !self.is_terminal {
            return Some(format!("{}\n", step.line(since)));
        }
        let width = if width == 0 { USUAL_WIDTH } else { width };
        // A line that wraps could not be cleared; writing the last column makes some terminals wrap.
        let bar: String = step.bar(since).chars().take(width.saturating_sub(1)).collect();
        Some(format!("\r\x1b[2K{bar}"))
    }

    /// The sequence that clears a bar.
    fn end(&self) -> &'static str {
        if self.is_terminal && self.has_drawn { "\r\x1b[2K" } else { "" }
    }
}

impl Step {
    fn line(&self, since: Duration) -> String {
        format!("{}: {}", self.what, self.figures(since))
    }

    fn bar(&self, since: Duration) -> String {
        let Some(share) = self.percent() else { return self.line(since) };
        let filled = usize::try_from(share).unwrap_or(0) * BAR_WIDTH / 100;
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR_WIDTH - filled));
        format!("{} [{bar}] {}", self.what, self.figures(since))
    }

    fn figures(&self, since: Duration) -> String {
        let seconds = since.as_secs();
        match (self.percent(), self.total) {
            (Some(percent), Some(total)) => {
                format!("{percent} %, {} of {}{}", bytes(self.done), bytes(total), self.left(since))
            }
            _ if self.done > 0 => format!("{}, {seconds} s", bytes(self.done)),
            _ => format!("{seconds} s"),
        }
    }

    fn percent(&self) -> Option<u64> {
        let total = self.total.filter(|total| *total > 0)?;
        let percent = u128::from(self.done.min(total)) * 100 / u128::from(total);
        u64::try_from(percent).ok()
    }

    /// The estimated remaining time at the average rate, once there is one.
    fn left(&self, since: Duration) -> String {
        let rest = self.total.unwrap_or(0).saturating_sub(self.done);
        if self.done == 0 || rest == 0 || since < Duration::from_secs(1) {
            return String::new();
        }
        let millis = since.as_millis() * u128::from(rest) / u128::from(self.done);
        format!(", {} s left", millis.div_ceil(1000))
    }
}

/// `1.5 MiB`
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["bytes", "KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut tenths = u128::from(count) * 10;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1_024;
        unit += 1;
    }
    match unit {
        0 => format!("{count} {}", UNITS[0]),
        _ => format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn step(done: u64, total: Option<u64>) -> Step {
        Step { done, total, ..Step::new("sending rules.yaml".to_owned(), None) }
    }

    /// The text drawn `millis` after the start.
    fn painted(painter: &mut Painter, step: &Step, millis: u64) -> Option<String> {
        painter.paint(step, step.since + Duration::from_millis(millis), 80)
    }

    #[test]
    fn a_terminal_sees_a_bar_once_it_takes_a_while_and_no_trace_of_it_after() {
        let step = step(75 * MIB, Some(150 * MIB));
        let mut painter = Painter::new(true, step.since);
        assert_eq!(painted(&mut painter, &step, 299), None);
        assert_eq!(painter.end(), "", "nothing was drawn");
        let bar = painted(&mut painter, &step, 3_000).expect("it has taken a while");
        let half =
            "\r\x1b[2Ksending rules.yaml [############------------] 50 %, 75.0 MiB of 150.0 MiB, 3 s left";
        assert_eq!(bar, half[..half.len().min(bar.len())]);
        assert!(bar.chars().count() <= 79 + 5, "a line that wraps cannot be wiped");
        assert!(painted(&mut painter, &step, 3_001).is_some());
        assert_eq!(painter.end(), "\r\x1b[2K");
    }

    #[test]
    fn elsewhere_a_plain_line_comes_every_five_seconds() {
        let step = step(MIB / 2, Some(2 * MIB));
        let mut painter = Painter::new(false, step.since);
        let lines: Vec<_> = (0..=120).filter_map(|tenth| painted(&mut painter, &step, tenth * 100)).collect();
        assert_eq!(
            lines,
            [
                "sending rules.yaml: 25 %, 512.0 KiB of 2.0 MiB, 15 s left\n",
                "sending rules.yaml: 25 %, 512.0 KiB of 2.0 MiB, 30 s left\n"
            ]
        );
        assert_eq!(painter.end(), "");
    }

    #[test]
    fn work_without_a_known_end_shows_how_long_it_has_taken() {
        let waiting = step(0, None);
        assert_eq!(waiting.bar(Duration::from_secs(7)), "sending rules.yaml: 7 s");
        assert_eq!(step(3 * MIB, None).line(Duration::from_secs(7)), "sending rules.yaml: 3.0 MiB, 7 s");
        assert_eq!(step(0, Some(0)).line(Duration::ZERO), "sending rules.yaml: 0 s", "an empty file");
    }

    #[test]
    fn strange_figures_do_no_harm() {
        let full = step(u64::MAX, Some(u64::MAX));
        assert!(full.bar(Duration::from_secs(9)).contains("100 %"));
        assert!(step(9, Some(3)).bar(Duration::from_secs(9)).contains("100 %"), "a file that has grown");
        let mut painter = Painter::new(true, Instant::now());
        let now = Instant::now() + Duration::from_secs(1);
        for width in [1, 2, 20] {
            let drawn = painter.paint(&full, now, width).expect("a picture");
            assert!(drawn.chars().count() <= width + 4, "{drawn:?}");
        }
    }

    #[test]
    fn bytes_are_written_for_people() {
        let written = [0, 1_023, 1_024, 1_536, 150 * MIB, 3 << 30, u64::MAX].map(bytes);
        assert_eq!(written[..6], ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "150.0 MiB", "3.0 GiB"]);
    }
}
