//! Which code an input has reached, where the build counts it.
//!
//! LLVM's `sancov-module` pass gives every edge an 8-bit counter and hands the counters of each module to
//! `__sanitizer_cov_8bit_counters_init` before `main`. `scripts/fuzz` builds so. Any other build has no counters, and
//! every input looks as if it reached nothing new.

use std::sync::{Mutex, PoisonError};

/// The counters of all modules, as address and length.
static MODULES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called by the constructor of each instrumented module.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let module = (start as usize, (stop as usize).saturating_sub(start as usize));
    // A module with several constructors announces its counters more than once.
    if !modules.contains(&module) {
        modules.push(module);
    }
}

/// What all inputs so far have reached together.
pub struct Coverage {
    modules: Vec<(usize, usize)>,
    /// For each counter, the classes of counts that were seen.
    seen: Vec<u8>,
}

impl Coverage {
    pub fn new() -> Coverage {
        let modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let counters = modules.iter().map(|(_, length)| length).sum();
        Coverage { modules, seen: vec![0; counters] }
    }

    /// Whether the build counts edges.
    pub fn is_counted(&self) -> bool {
        !self.seen.is_empty()
    }

    /// How many edges were reached.
    pub fn edges(&self) -> usize {
        self.seen.iter().filter(|classes| **classes != 0).count()
    }

    /// Sets all counters to zero.
    pub fn reset(&mut self) {
        for (start, length) in &self.modules {
            // SAFETY: the range is a static array of counters that LLVM has made, which lives as long as the program. Other
            // threads may count meanwhile; the bytes are plain numbers, and a lost count does no harm.
            unsafe { std::ptr::write_bytes(*start as *mut u8, 0, *length) };
        }
    }

    /// Adds the counts since the reset; returns whether any of it is new.
    pub fn add(&mut self) -> bool {
        let mut is_new = false;
        let mut seen = self.seen.iter_mut();
        for (start, length) in &self.modules {
            for offset in 0..*length {
                // SAFETY: inside of the array above.
                let count = unsafe { std::ptr::read_volatile((*start + offset) as *const u8) };
                let Some(seen) = seen.next() else { break };
                let class = class_of(count);
                is_new |= *seen & class != class;
                *seen |= class;
            }
        }
        is_new
    }
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage::new()
    }
}

/// A bit for each power of two: that a loop ran once more is seldom news.
fn class_of(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3..=4 => 4,
        5..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        33..=128 => 64,
        _ => 128,
    }
}
