//! Progress of long work on stderr: a bar on a terminal, a plain line now and then elsewhere.
//!
//! Drawn by `indicatif`, whose ticker thread keeps the display alive during blocking work. Nothing is drawn for short
//! work.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// Redraw interval on a terminal. Work that ends sooner is not shown.
const FRAME: Duration = Duration::from_millis(300);
/// Interval of lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often the lines are looked at; `indicatif` draws no more than once in this time.
const LINE_TICK: Duration = Duration::from_secs(1);

const BAR: &str = "{msg} [{bar:24.#>-}] {percent} %, {binary_bytes} of {binary_total_bytes}, {eta} left";
const BYTES: &str = "{msg}: {percent} %, {binary_bytes} of {binary_total_bytes}, {eta} left";
const UNKNOWN_END: &str = "{msg}: {binary_bytes}, {elapsed}";
const WAITING: &str = "{msg}: {elapsed}";

/// Shown until it is dropped, which clears the bar.
pub struct Progress {
    bar: Mutex<ProgressBar>,
}

impl Progress {
    /// Starts the first part of the work, of `total` bytes if known.
    pub fn start(what: impl Into<String>, total: Option<u64>) -> Progress {
        Progress { bar: Mutex::new(shown(what.into(), total)) }
    }

    /// Starts the next part of the work.
    pub fn step(&self, what: impl Into<String>) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.finish_and_clear();
        *bar = shown(what.into(), None);
    }

    /// Sets the number of bytes done.
    pub fn at(&self, done: u64) {
        let bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        if bar.length().is_none() && bar.position() == 0 && done > 0 {
            bar.set_style(style(UNKNOWN_END));
        }
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.get_mut().unwrap_or_else(PoisonError::into_inner).finish_and_clear();
    }
}

fn shown(what: String, total: Option<u64>) -> ProgressBar {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if io::stderr().is_terminal() && !is_dumb {
        ticking(ProgressDrawTarget::stderr(), FRAME, what, total, BAR)
    } else {
        let lines = ProgressDrawTarget::term_like(Box::new(LineLog::new(io::stderr())));
        ticking(lines, LINE_TICK, what, total, BYTES)
    }
}

/// A bar that its ticker draws, for the first time after one interval.
fn ticking(
    target: ProgressDrawTarget,
    interval: Duration,
    what: String,
    total: Option<u64>,
    template: &str,
) -> ProgressBar {
    let total = total.filter(|total| *total > 0);
    let bar = ProgressBar::with_draw_target(total, target)
        .with_style(style(if total.is_some() { template } else { WAITING }))
        .with_message(what);
    bar.enable_steady_tick(interval);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid").progress_chars("#>-")
}

/// Writes what is drawn as a plain line, at most once in [`LINE_EVERY`].
struct LineLog<W> {
    state: Mutex<LineState<W>>,
}

struct LineState<W> {
    out: W,
    /// What was drawn since the last flush.
    drawn: String,
    /// The start, then the time of the last line.
    last: Instant,
}

impl<W: Write> LineLog<W> {
    fn new(out: W) -> LineLog<W> {
        LineLog { state: Mutex::new(LineState { out, drawn: String::new(), last: Instant::now() }) }
    }

    fn draw(&self, text: &str) -> io::Result<()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).drawn.push_str(text);
        Ok(())
    }

    fn flush_at(&self, now: Instant) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = std::mem::take(&mut state.drawn);
        let line = drawn.trim();
        if line.is_empty() || now.saturating_duration_since(state.last) < LINE_EVERY {
            return Ok(());
        }
        state.last = now;
        writeln!(state.out, "{line}")
    }
}

impl<W> fmt::Debug for LineLog<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LineLog")
    }
}

impl<W: Write + Send> TermLike for LineLog<W> {
    /// Lines are not cut off.
    fn width(&self) -> u16 {
        u16::MAX
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_at(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Keeps what is drawn.
    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Screen {
        fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that is drawn for this work.
    fn drawn(template: &str, done: u64, total: Option<u64>) -> String {
        let screen = Screen::default();
        let log = LineLog::new(screen.clone());
        log.state.lock().expect("no panic").last -= LINE_EVERY;
        let target = ProgressDrawTarget::term_like(Box::new(log));
        let bar =
            ticking(target, Duration::from_secs(3_600), "sending rules.yaml".to_owned(), total, template);
        bar.set_position(done);
        bar.force_draw();
        screen.text()
    }

    #[test]
    fn a_bar_shows_the_share_the_bytes_and_the_time_left() {
        let half = drawn(BAR, 75 * MIB, Some(150 * MIB));
        assert!(
            half.starts_with("sending rules.yaml [############>-----------] 50 %, 75.00 MiB of 150.00 MiB, ")
        );
        assert!(half.ends_with(" left\n"), "{half}");
    }

    #[test]
    fn work_without_a_known_end_shows_how_long_it_has_taken() {
        assert_eq!(drawn(BAR, 0, None), "sending rules.yaml: 0s\n");
        assert_eq!(drawn(BAR, 0, Some(0)), "sending rules.yaml: 0s\n", "an empty file");
    }

    #[test]
    fn inconsistent_figures_are_drawn_without_panicking() {
        assert!(drawn(BAR, u64::MAX, Some(u64::MAX)).contains("100 %"));
        assert!(drawn(BYTES, 9, Some(3)).contains("100 %"), "a file that has grown");
    }

    #[test]
    fn without_a_terminal_a_plain_line_is_written_every_five_seconds() {
        let screen = Screen::default();
        let log = LineLog::new(screen.clone());
        let started = log.state.lock().expect("no panic").last;
        for second in 0..=12 {
            log.write_str(&format!("{second} s")).expect("a draft");
            log.flush_at(started + Duration::from_secs(second)).expect("a line");
        }
        assert_eq!(screen.text(), "5 s\n10 s\n");
    }
}
