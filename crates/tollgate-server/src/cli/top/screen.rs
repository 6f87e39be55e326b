//! The terminal while a live view is shown; restored when it is dropped.

use std::io::{self, Write};

use rustix::termios::tcgetwinsize;

/// The alternate screen, without a cursor and without wrapping lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const TO_START: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
/// If the terminal does not tell.
const DEFAULT_ROWS: usize = 24;

pub struct Screen {
    has_style: bool,
}

impl Screen {
    pub fn open() -> Screen {
        write(ENTER).ok();
        Screen { has_style: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    /// Replaces what is shown by lines that fit the rows of the terminal; the first one is emphasised.
    pub fn show(&mut self, lines: impl FnOnce(usize) -> Vec<String>) -> io::Result<()> {
        let mut frame = TO_START.to_owned();
        for (n, line) in lines(rows()).iter().enumerate() {
            if n > 0 {
                frame += "\r\n";
            }
            match n == 0 && self.has_style {
                true => frame += &format!("{BOLD}{line}{PLAIN}{CLEAR_LINE}"),
                false => frame += &format!("{line}{CLEAR_LINE}"),
            }
        }
        write(&(frame + CLEAR_BELOW))
    }

    /// Replaces the first line, and leaves the last view below it.
    pub fn show_trouble(&mut self, why: &str) -> io::Result<()> {
        let why = crate::cli::out::escape_control(why);
        write(&format!("{TO_START}no answer, the view is old: {why}{CLEAR_LINE}"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(LEAVE).ok();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn rows() -> usize {
    let size = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_row));
    size.filter(|rows| *rows > 0).unwrap_or(DEFAULT_ROWS)
}
