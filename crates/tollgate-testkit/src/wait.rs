//! Waiting for a condition.

use std::thread;
use std::time::{Duration, Instant};

/// The deadline of what happens soon, on a busy machine too.
pub const SOON: Duration = Duration::from_secs(30);
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// Returns once `holds`; panics with `what` if it does not come to hold.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(POLL);
    }
}

/// How long changes took to be in force. Asking takes its time too on a busy machine: one may take up to two seconds,
/// but the program would hold up most.
#[derive(Default)]
pub struct Waits(Vec<Duration>);

impl Waits {
    pub fn until(&mut self, what: &str, holds: impl FnMut() -> bool) {
        let start = Instant::now();
        eventually(what, holds);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(2), "{what}: {took:?}");
        self.0.push(took);
    }

    pub fn are_within_a_second(mut self) {
        self.0.sort();
        assert!(self.0[self.0.len() / 2] < Duration::from_secs(1), "the middle one of {:?}", self.0);
    }
}
