//! The processor's own counter as a clock: cheaper to read than the system's.
//!
//! The counter tells how much time has passed since an *anchor*, a moment when the system's clock was
//! read. The anchor is renewed as time is asked for, once in a while, so that the two never part by
//! more than the counter drifts in that while; where there is no steady counter the system is asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::sync::spin;
use crate::time::nanos_of;

/// Nanoseconds since it was made; they never go back.
#[derive(Debug)]
pub(super) struct Ticker {
    started: Instant,
    /// Whether the counter can be relied on.
    steady: AtomicBool,
    /// Even while the anchor is whole: read before and after it.
    version: AtomicU64,
    busy: AtomicBool,
    anchor: Anchor,
}

/// At `counter` it was `nanos`, and from there on each count is worth `scale` / 2^32 nanoseconds.
#[derive(Debug, Default)]
struct Anchor {
    counter: AtomicU64,
    nanos: AtomicU64,
    scale: AtomicU64,
    /// How many counts the anchor holds; none until the first one is made, and where none can be.
    holds: AtomicU64,
    /// When the counter was first read, and what it was.
    first: AtomicU64,
}

/// How long the first measurement of the counter's rate takes at least, and how long an anchor holds.
const FIRST: Duration = Duration::from_millis(20);
const HOLDS: Duration = Duration::from_millis(500);

impl Ticker {
    pub(super) fn new() -> Ticker {
        let ticker = Ticker {
            started: Instant::now(),
            steady: AtomicBool::new(counter::is_steady()),
            version: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            anchor: Anchor::default(),
        };
        ticker.anchor.first.store(counter::read(), Ordering::Relaxed);
        ticker
    }

    #[inline]
    pub(super) fn elapsed(&self) -> u64 {
        let version = self.version.load(Ordering::Acquire);
        let now = counter::read();
        let [counter, nanos, scale, holds] = self.anchor.read();
        // What has gone back has wrapped around, and is beyond what holds.
        let counted = now.wrapping_sub(counter);
        if counted < holds {
            fence(Ordering::Acquire);
            // One that was odd is never found again.
            if self.version.load(Ordering::Relaxed) == version & !1 {
                return nanos + scaled(counted, scale);
            }
        }
        self.renew()
    }

    /// Reads the system's clock, and anchors the counter to it.
    #[cold]
    fn renew(&self) -> u64 {
        if !self.steady.load(Ordering::Relaxed) {
            return nanos_of(self.started.elapsed());
        }
        if self.busy.swap(true, Ordering::Acquire) {
            while self.busy.load(Ordering::Acquire) {
                spin();
            }
            return self.elapsed();
        }
        let (nanos, now) = (nanos_of(self.started.elapsed()), counter::read());
        let counted = now.saturating_sub(self.anchor.first.load(Ordering::Relaxed));
        let gone_back = now < self.anchor.counter.load(Ordering::Relaxed);
        // Where the counter was ahead it stays there, until the system has caught up.
        let shown = self.shown_at(now).max(nanos);
        if gone_back {
            self.steady.store(false, Ordering::Relaxed); // a counter that goes back is none
            self.write(now, shown, 0, 0);
        } else if nanos >= nanos_of(FIRST) && counted > 0 {
            let rate = (u128::from(nanos) << SCALE_BITS) / u128::from(counted);
            // It runs so that it meets the system's clock again when the anchor is due.
            let holds = nanos_of(HOLDS);
            let ahead = (shown - nanos).min(holds / 2);
            let scale =
                u64::try_from(rate * u128::from(holds - ahead) / u128::from(holds)).unwrap_or(u64::MAX);
            let counts = u128::from(holds) * u128::from(counted) / u128::from(nanos);
            self.write(now, shown, scale, u64::try_from(counts).unwrap_or(u64::MAX));
        }
        self.busy.store(false, Ordering::Release);
        shown
    }

    fn write(&self, counter: u64, nanos: u64, scale: u64, holds: u64) {
        self.version.fetch_add(1, Ordering::Acquire);
        fence(Ordering::Release);
        self.anchor.counter.store(counter, Ordering::Relaxed);
        self.anchor.nanos.store(nanos, Ordering::Relaxed);
        self.anchor.scale.store(scale, Ordering::Relaxed);
        self.anchor.holds.store(holds, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// What the anchor in force says, but not beyond where it holds. Only its renewer calls this, so
    /// nobody changes it meanwhile.
    fn shown_at(&self, now: u64) -> u64 {
        let [counter, nanos, scale, holds] = self.anchor.read();
        nanos + scaled(now.saturating_sub(counter).min(holds), scale)
    }
}

impl Anchor {
    #[inline]
    fn read(&self) -> [u64; 4] {
        [&self.counter, &self.nanos, &self.scale, &self.holds].map(|part| part.load(Ordering::Relaxed))
    }
}

const SCALE_BITS: u32 = 32;

/// What counts are worth that an anchor holds: with the bits of the scale they fit 64.
#[inline]
fn scaled(counts: u64, scale: u64) -> u64 {
    counts.wrapping_mul(scale) >> SCALE_BITS
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// Whether the counter runs at one rate, whatever the processor does.
    pub(super) fn is_steady() -> bool {
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "safe in newer compilers")]
        // SAFETY: every processor of this architecture answers these.
        let [highest, power] = unsafe { [__cpuid(0x8000_0000).eax, __cpuid(0x8000_0007).edx] };
        highest >= 0x8000_0007 && power & INVARIANT != 0
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every processor of this architecture has the counter.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
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
        let ticker = Ticker::new();
        let (mut last, mut renewed, mut version) = (0, 0, 0);
        while nanos_of(ticker.started.elapsed()) < 3 * nanos_of(HOLDS) {
            let before = nanos_of(ticker.started.elapsed());
            let shown = ticker.elapsed();
            let after = nanos_of(ticker.started.elapsed());
            assert!(shown >= last, "{shown} after {last}");
            let apart = before.saturating_sub(shown).max(shown.saturating_sub(after));
            assert!(apart < 5_000_000, "{apart} ns apart");
            last = shown;
            renewed += u64::from(version != ticker.version.load(Ordering::Relaxed));
            version = ticker.version.load(Ordering::Relaxed);
        }
        assert!(renewed >= 2 || !counter::is_steady(), "{renewed} anchors");
    }

    #[test]
    fn threads_agree() {
        let ticker = Ticker::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    for _ in 0..300_000 {
                        let shown = ticker.elapsed();
                        assert!(shown >= last);
                        last = shown;
                    }
                });
            }
        });
    }
}
