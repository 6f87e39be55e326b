//! Time in the library: nanoseconds of Unix time, passed in by the caller.
//!
//! Nothing below this module reads a clock. [`Clock`] is for callers of the library; its time never goes back within a
//! process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[allow(missing_docs)]
pub mod calendar;
mod duration;
#[allow(missing_docs)]
mod period;
mod tsc_clock;

pub use duration::{format_duration, parse_duration};
pub use period::{Period, Unit};
use tsc_clock::TscClock;

pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A timestamp, in nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// 1970-01-01 00:00:00 UTC.
    pub const EPOCH: Time = Time(0);
    /// Never: later than any timestamp that a limit can reach.
    pub const MAX: Time = Time(u64::MAX);

    /// Nanoseconds since the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Seconds since the epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// Nanoseconds since the epoch.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    pub const fn secs(self) -> u64 {
        self.0 / NANOS_PER_SECOND
    }

    /// The duration since `earlier`; zero if it is not earlier.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(nanos_of(duration)))
    }
}

impl std::ops::Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(nanos_of(duration)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs(), self.0 % NANOS_PER_SECOND)
    }
}

/// A duration in nanoseconds, at most `u64::MAX` (584 years).
pub(crate) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The source of a decision's time: a timestamp, or a clock that is read when needed.
pub trait Now {
    /// The time now.
    fn now(&self) -> Time;
}

impl Now for Time {
    #[inline]
    fn now(&self) -> Time {
        *self
    }
}

impl Now for &Clock {
    #[inline]
    fn now(&self) -> Time {
        Clock::now(self)
    }
}

/// Unix time that never goes back: monotonic. While it is read, it follows the system's clock forward about twice a second,
/// after a suspended machine resumes or an NTP step.
#[derive(Debug)]
pub struct Clock {
    ticker: TscClock,
    /// Unix nanoseconds when the clock started; only ever raised.
    anchor: AtomicU64,
    /// When the system's clock is read next, in nanoseconds since the start.
    reanchored_from: AtomicU64,
}

/// At most this often the system's clock is read. The time is extrapolated for as long without reading any clock.
const REANCHOR_INTERVAL: Duration = Duration::from_millis(500);

impl Clock {
    /// A clock that starts at the time of the system.
    pub fn new() -> Self {
        Self::with(unix_nanos(), TscClock::new())
    }

    /// A clock that stands still until it is [advanced](Self::advance): for tests.
    pub fn manual(start: Time) -> Self {
        Self::with(start.0, TscClock::stopped())
    }

    fn with(anchor: u64, ticker: TscClock) -> Clock {
        let reanchored_from = AtomicU64::new(nanos_of(REANCHOR_INTERVAL));
        Clock { ticker, anchor: AtomicU64::new(anchor), reanchored_from }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Time {
        match self.ticker.extrapolated() {
            Some(elapsed) => Time(self.anchor.load(Ordering::Relaxed) + elapsed),
            None => self.now_from_system(),
        }
    }

    #[cold]
    fn now_from_system(&self) -> Time {
        let elapsed = self.ticker.elapsed();
        if elapsed >= self.reanchored_from.load(Ordering::Relaxed) {
            // Threads that meet here do the same twice.
            self.reanchored_from.store(elapsed + nanos_of(REANCHOR_INTERVAL), Ordering::Relaxed);
            self.reanchor();
        }
        Time(self.anchor.load(Ordering::Relaxed) + elapsed)
    }

    /// Moves the time forward.
    pub fn advance(&self, duration: Duration) {
        self.anchor.fetch_add(nanos_of(duration), Ordering::Relaxed);
    }

    /// Moves the time forward to `time`; a time that has passed changes nothing. So a clock can follow another one, such
    /// as that of a runtime with paused time.
    pub fn advance_to(&self, time: Time) {
        let anchor = time.0.min(u64::MAX / 2).saturating_sub(self.ticker.elapsed());
        self.anchor.fetch_max(anchor, Ordering::Relaxed);
    }

    /// Follows the system clock forward at once. A clock that is read does so by itself.
    pub fn reanchor(&self) {
        let anchor = unix_nanos().saturating_sub(self.ticker.elapsed());
        self.anchor.fetch_max(anchor, Ordering::Relaxed);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Clamped, so that elapsed time can be added without overflow.
fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos_of).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_follows_the_system_and_never_goes_back() {
        let clock = Clock::new();
        let mut last = clock.now();
        for _ in 0..1000 {
            clock.reanchor();
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(Time(unix_nanos()).since(last) < Duration::from_secs(5));
    }

    #[test]
    fn a_clock_that_is_read_follows_the_system_forward_by_itself() {
        let clock = Clock::new();
        clock.anchor.fetch_sub(Time::from_secs(3600).0, Ordering::Relaxed); // the machine was suspended
        let started = std::time::Instant::now();
        while Time(unix_nanos()).since(clock.now()) > Duration::from_secs(60) {
            assert!(started.elapsed() < Duration::from_secs(60), "it stays behind");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_clock_that_is_advanced_to_a_time_never_goes_back() {
        let clock = Clock::manual(Time::from_secs(10));
        clock.advance_to(Time::from_secs(12));
        assert_eq!(clock.now(), Time::from_secs(12));
        clock.advance_to(Time::from_secs(11));
        assert_eq!(clock.now(), Time::from_secs(12));
    }
}
