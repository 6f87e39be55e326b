//! The cheapest clock of the machine: its cycle counter where there is one.

use std::time::{Duration, Instant};

pub struct Ticks {
    #[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "the counter needs no start"))]
    started: Instant,
    per_second: f64,
}

impl Ticks {
    const CALIBRATION: Duration = Duration::from_millis(5);

    /// Measures how fast the counter runs, which takes a few milliseconds.
    pub fn new() -> Ticks {
        let mut ticks = Ticks { started: Instant::now(), per_second: 1e9 };
        let start = Instant::now();
        let first = ticks.now();
        while start.elapsed() < Self::CALIBRATION {}
        let last = ticks.now();
        let elapsed = start.elapsed();
        ticks.per_second = (last - first) as f64 / elapsed.as_secs_f64();
        ticks
    }

    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    pub fn nanos(&self, ticks: u64) -> f64 {
        ticks as f64 / self.per_second * 1e9
    }

    #[cfg(target_arch = "x86_64")]
    pub fn now(&self) -> u64 {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
