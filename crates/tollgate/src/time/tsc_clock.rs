//! The processor's time stamp counter as a clock: cheaper to read than the system's.
//!
//! An *anchor* pairs a value of the counter with the time of the system clock. Time is extrapolated from it while it
//! is valid, so that the two clocks differ by at most the drift of the counter in that time. Without an invariant
//! counter the system clock is read.
//!
//! Not `quanta` (0.13): it calibrates once, and then ignores the corrections of the system clock. It was 16.5 µs off
//! after a minute (0.27 ppm, 23 ms a day) on a quiet clock, and NTP may slew the clock by 500 ppm, 43 s a day. An
//! anchor here is valid for half a second.
//!
//! The anchor is a sequence lock whose writer never blocks readers. The thread that finds it expired sets [`WRITING`]
//! and replaces it. Other threads meanwhile set [`OVERTAKEN`] and read the system clock; the writer's publishing CAS
//! then fails, because its sample may be older than a time already returned. So a preempted writer delays no other
//! thread, and no thread sees time go back.
//!
//! Nor does it go back from one anchor to the next, which may be behind: the latest time of each anchor is stored. There
//! are two of them, so that the writer leaves the one that other threads read alone:
//!
//! ```text
//! version       latest time of anchor n                      latest time of anchor n + 1
//! n             not read while the anchor is valid
//! n | WRITING   read by the writer (n + 1 begins no           written by the writer
//!               earlier) and by threads that overtake it
//!               (they return no earlier time)
//! n + 1         its place is free for that of anchor n + 2   read once anchor n + 1 has expired
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::sync::spin;
use crate::time::nanos_of;

/// Nanoseconds since construction; they never go back.
#[derive(Debug)]
pub(super) struct TscClock {
    started: Instant,
    /// The start of the measurement of the counter's rate.
    first: ClockSample,
    /// Whether the counter is reliable.
    steady: AtomicBool,
    /// The number of the anchor in steps of [`VERSION_STEP`], and the two flags.
    version: AtomicU64,
    anchor: Anchor,
    /// The latest time that an anchor can return, for the anchors with even and with odd numbers: the next anchor's is
    /// written while the present one's is read.
    latest_times: [AtomicU64; 2],
}

/// A thread is replacing the anchor.
const WRITING: u64 = 1;
/// A time later than the writer's sample may have been returned.
const OVERTAKEN: u64 = 2;
const VERSION_STEP: u64 = 4;

/// At `counter` the time was `nanos`; each later count adds `scale` / 2^32 nanoseconds.
#[derive(Debug, Default)]
struct Anchor {
    counter: AtomicU64,
    nanos: AtomicU64,
    scale: AtomicU64,
    /// The number of counts for which the anchor is valid; zero until there is one.
    valid_counts: AtomicU64,
}

/// The system clock and the counter, read together.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    nanos: u64,
    counter: u64,
}

/// The minimum duration of the first rate measurement, and the validity of an anchor.
const MIN_CALIBRATION: Duration = Duration::from_millis(20);
const ANCHOR_VALIDITY: Duration = Duration::from_millis(500);
/// Spins of a reader before it overtakes the writer, which needs a fraction of that.
const MAX_SPINS: u32 = 100;
/// Attempts of a writer that was overtaken.
const MAX_WRITES: u32 = 3;
/// Attempts to read both clocks close together, and the maximum gap in counts.
const MAX_SAMPLES: u32 = 4;
const MAX_SAMPLE_GAP: u64 = 10_000;

impl TscClock {
    pub(super) fn new() -> TscClock {
        let started = Instant::now();
        TscClock {
            started,
            first: sample(started),
            steady: AtomicBool::new(counter::is_steady()),
            version: AtomicU64::new(0),
            anchor: Anchor::default(),
            latest_times: Default::default(),
        }
    }

    /// Always zero: its anchor is valid forever, and a count adds nothing.
    pub(super) fn stopped() -> TscClock {
        let clock = TscClock::new();
        clock.anchor.valid_counts.store(u64::MAX, Ordering::Relaxed);
        clock
    }

    #[inline]
    pub(super) fn elapsed(&self) -> u64 {
        self.extrapolated().unwrap_or_else(|| self.elapsed_without_anchor())
    }

    /// The time if there is a valid anchor: read from no clock of the system.
    #[inline]
    pub(super) fn extrapolated(&self) -> Option<u64> {
        self.extrapolated_from(self.version.load(Ordering::Acquire))
    }

    /// The extrapolated time, if the anchor is valid, complete and still of this version.
    #[inline(always)]
    fn extrapolated_from(&self, version: u64) -> Option<u64> {
        let now = counter::read();
        let [counter, nanos, scale, valid_counts] = self.anchor.read();
        // A counter that has gone back wraps to a value beyond the validity.
        let counted = now.wrapping_sub(counter);
        if counted >= valid_counts {
            return None;
        }
        fence(Ordering::Acquire);
        // A version with flags is never equal.
        let unchanged = self.version.load(Ordering::Relaxed) == version & !(WRITING | OVERTAKEN);
        unchanged.then(|| nanos + scaled(counted, scale))
    }

    /// Replaces the anchor, or reads the system clock while another thread does. Lock-free: each further iteration
    /// means that another thread has made progress.
    #[cold]
    fn elapsed_without_anchor(&self) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if let Some(returned_time) = self.extrapolated_from(version) {
                return returned_time;
            }
            let now = self.system();
            if now < nanos_of(MIN_CALIBRATION) {
                return now; // there is no anchor yet, and the first one begins later
            }
            if !self.steady.load(Ordering::Relaxed) {
                return now.max(self.latest_time(version));
            }
            if version & WRITING != 0 {
                if let Some(returned_time) = self.overtake(version) {
                    return returned_time;
                }
            } else if let Some(returned_time) =
                self.start_writing(version).and_then(|version| self.replace_anchor(version))
            {
                return returned_time;
            }
        }
    }

    /// Sets [`WRITING`]; returns the version with it, or `None` if another thread won the race.
    fn start_writing(&self, version: u64) -> Option<u64> {
        let writing = version | WRITING;
        let started = self.version.compare_exchange(version, writing, Ordering::Acquire, Ordering::Relaxed);
        started.ok().map(|_| writing)
    }

    /// The system's time while another thread replaces the anchor; `None` if it was replaced meanwhile.
    fn overtake(&self, version: u64) -> Option<u64> {
        if version & OVERTAKEN == 0 {
            for _ in 0..MAX_SPINS {
                if self.version.load(Ordering::Relaxed) != version {
                    return None;
                }
                spin();
            }
        }
        let overtaken = version | OVERTAKEN;
        self.version.compare_exchange(version, overtaken, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let returned_time = self.system().max(self.latest_time(version));
        // A read-modify-write: it happens before the writer clears the flag and samples again, so the new sample is
        // later.
        let confirmed =
            self.version.compare_exchange(overtaken, overtaken, Ordering::AcqRel, Ordering::Relaxed);
        confirmed.ok().map(|_| returned_time)
    }

    /// Replaces the anchor of this version, which has [`WRITING`] set. `None` if the writer was overtaken: then there
    /// is no valid anchor, and the next caller tries again.
    fn replace_anchor(&self, version: u64) -> Option<u64> {
        for _ in 0..MAX_WRITES {
            let returned_time = self.prepare(version, sample(self.started));
            if self.publish(version) {
                return Some(returned_time);
            }
            self.version.fetch_and(!OVERTAKEN, Ordering::AcqRel);
        }
        let nanos = self.latest_time(version);
        self.write(version, ClockSample { nanos, counter: 0 }, 0, 0);
        self.version.store((version & !WRITING) + VERSION_STEP, Ordering::Release);
        None
    }

    /// Writes the next anchor; returns the time at which it begins.
    fn prepare(&self, version: u64, sample: ClockSample) -> u64 {
        let ClockSample { nanos, counter } = sample;
        let counted = counter.saturating_sub(self.first.counter);
        let measured = nanos.saturating_sub(self.first.nanos).max(1);
        // If the anchor was ahead, time does not advance until the system clock has caught up.
        let returned_time = self.latest_time(version).max(nanos);
        let start = ClockSample { nanos: returned_time, counter };
        if counted == 0 || counter < self.anchor.counter.load(Ordering::Relaxed) {
            self.steady.store(false, Ordering::Relaxed); // a counter that goes back is unusable
            self.write(version, start, 0, 0);
            return returned_time;
        }
        let rate = (u128::from(measured) << SCALE_BITS) / u128::from(counted);
        // The scale is chosen so that both clocks agree when the anchor expires.
        let validity_ns = nanos_of(ANCHOR_VALIDITY);
        let ahead = (returned_time - nanos).min(validity_ns / 2);
        let scale = rate * u128::from(validity_ns - ahead) / u128::from(validity_ns);
        let scale = u64::try_from(scale).unwrap_or(u64::MAX);
        let valid_counts = u128::from(validity_ns) * u128::from(counted) / u128::from(measured);
        self.write(version, start, scale, u64::try_from(valid_counts).unwrap_or(u64::MAX));
        returned_time
    }

    /// Called only by the thread that has set [`WRITING`].
    fn write(&self, version: u64, start: ClockSample, scale: u64, valid_counts: u64) {
        fence(Ordering::Release); // a thread that sees any of these stores sees the flag
        self.anchor.counter.store(start.counter, Ordering::Relaxed);
        self.anchor.nanos.store(start.nanos, Ordering::Relaxed);
        self.anchor.scale.store(scale, Ordering::Relaxed);
        self.anchor.valid_counts.store(valid_counts, Ordering::Relaxed);
        let latest = start.nanos + scaled(valid_counts, scale);
        self.latest_time_of(version + VERSION_STEP).store(latest, Ordering::Relaxed);
    }

    /// Publishes the written anchor, unless its writer was overtaken.
    fn publish(&self, version: u64) -> bool {
        let next = (version & !WRITING) + VERSION_STEP;
        let writing = version | WRITING;
        self.version.compare_exchange(writing, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn system(&self) -> u64 {
        nanos_of(self.started.elapsed())
    }

    /// The latest time that the anchor of a version can return.
    fn latest_time(&self, version: u64) -> u64 {
        self.latest_time_of(version).load(Ordering::Relaxed)
    }

    fn latest_time_of(&self, version: u64) -> &AtomicU64 {
        &self.latest_times[usize::from(version & VERSION_STEP != 0)]
    }
}

/// Reads both clocks; again if the thread was preempted in between.
fn sample(started: Instant) -> ClockSample {
    let mut before = counter::read();
    for _ in 1..MAX_SAMPLES {
        let nanos = nanos_of(started.elapsed());
        let counter = counter::read();
        if counter.saturating_sub(before) < MAX_SAMPLE_GAP {
            return ClockSample { nanos, counter };
        }
        before = counter;
    }
    ClockSample { nanos: nanos_of(started.elapsed()), counter: counter::read() }
}

impl Anchor {
    #[inline]
    fn read(&self) -> [u64; 4] {
        [&self.counter, &self.nanos, &self.scale, &self.valid_counts].map(|part| part.load(Ordering::Relaxed))
    }
}

const SCALE_BITS: u32 = 32;

/// Nanoseconds of counts within the validity of an anchor: the product with the scale fits 64 bits.
#[inline]
fn scaled(counts: u64, scale: u64) -> u64 {
    counts.wrapping_mul(scale) >> SCALE_BITS
}

#[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// Whether the counter has a constant rate in all power states.
    pub(super) fn is_steady() -> bool {
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "safe in newer compilers")]
        // SAFETY: every x86-64 processor has CPUID.
        let [highest, power] = unsafe { [__cpuid(0x8000_0000).eax, __cpuid(0x8000_0007).edx] };
        highest >= 0x8000_0007 && power & INVARIANT != 0
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has RDTSC.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
mod counter {
    pub(super) fn is_steady() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back_and_stays_with_the_system_over_several_anchors() {
        let ticker = TscClock::new();
        let mut last = 0;
        let mut renewed = 0;
        let mut version = 0;
        while nanos_of(ticker.started.elapsed()) < 3 * nanos_of(ANCHOR_VALIDITY) {
            let before = nanos_of(ticker.started.elapsed());
            let time = ticker.elapsed();
            let after = nanos_of(ticker.started.elapsed());
            assert!(time >= last, "{time} after {last}");
            let apart = before.saturating_sub(time).max(time.saturating_sub(after));
            assert!(apart < 5_000_000, "{apart} ns apart");
            last = time;
            renewed += u64::from(version != ticker.version.load(Ordering::Relaxed));
            version = ticker.version.load(Ordering::Relaxed);
        }
        assert!(renewed >= 2 || !counter::is_steady(), "{renewed} anchors");
    }

    #[test]
    fn threads_agree() {
        let ticker = TscClock::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    for _ in 0..300_000 {
                        let time = ticker.elapsed();
                        assert!(time >= last);
                        last = time;
                    }
                });
            }
        });
    }

    /// A clock that has measured the counter, and has no valid anchor.
    fn without_anchor() -> TscClock {
        let ticker = TscClock::new();
        while ticker.system() < nanos_of(MIN_CALIBRATION) {
            std::thread::yield_now();
        }
        ticker
    }

    /// A regression: readers blocked while another thread renewed the anchor.
    #[test]
    fn a_writer_that_loses_its_processor_delays_no_reader() {
        let ticker = std::sync::Arc::new(without_anchor());
        ticker.version.fetch_or(WRITING, Ordering::Relaxed);
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = ticker.clone();
        std::thread::spawn(move || {
            let mut last = 0;
            for _ in 0..10_000 {
                let time = reader.elapsed();
                assert!(time >= last && time <= reader.system());
                last = time;
            }
            sender.send(last).expect("the test waits for it");
        });
        receiver.recv_timeout(Duration::from_secs(60)).expect("the reader does not wait for the writer");
    }

    #[test]
    fn an_anchor_older_than_a_time_returned_is_not_published() {
        let ticker = without_anchor();
        ticker.version.fetch_or(WRITING, Ordering::Relaxed);
        let version = ticker.version.load(Ordering::Relaxed);
        let started = ticker.prepare(version, sample(ticker.started));
        let time = ticker.elapsed();
        assert!(time >= started);
        if counter::is_steady() {
            assert!(!ticker.publish(version));
            let renewed = ticker.replace_anchor(version);
            assert!(renewed.is_none_or(|renewed| renewed >= time));
        }
        assert!(ticker.elapsed() >= time);
    }
}
