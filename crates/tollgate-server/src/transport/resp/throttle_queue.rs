//! Calls of `CL.THROTTLE` on counters in memory: queued while they are parsed, so that their memory is prefetched, and
//! decided without waiting.
//!
//! The pattern of the last call is kept beside the limit that it means: calls that differ only in the key are not parsed.

use tollgate::Time;
use tollgate::internal::engine::ThrottleKey;

use super::call_pattern::CallPattern;
use super::frame::Args;
use super::reply::Replies;
use super::throttle::{ThrottleCall, write_outcome};
use crate::gate::{CallerKey, Gate, MemoryLimit};

/// Calls that are decided together: more prefetches than a processor has in flight gain nothing.
const MAX_QUEUED: usize = 16;

#[derive(Default)]
pub struct ThrottleQueue {
    calls: Vec<QueuedThrottle>,
    /// Of the last call, with its figures.
    pattern: CallPattern,
    figures: Option<CallFigures>,
}

struct QueuedThrottle {
    key: ThrottleKey,
    figures: CallFigures,
}

/// What a call asks for, apart from its key.
#[derive(Clone, Copy)]
struct CallFigures {
    limit: MemoryLimit,
    quantity: u64,
}

impl ThrottleQueue {
    pub fn is_full(&self) -> bool {
        self.calls.len() == MAX_QUEUED
    }

    /// Adds the call that `input` begins with if it is complete and like the last one; returns its length.
    #[inline]
    pub fn add_similar(&mut self, gate: &Gate, database: u8, input: &[u8]) -> Option<usize> {
        let figures = self.figures?;
        let (name, length) = self.pattern.key_of(input)?;
        let key = gate.memory_key(CallerKey { database, name });
        self.calls.push(QueuedThrottle { key, figures });
        Some(length)
    }

    /// Adds a valid call on a counter in memory; returns whether it is one.
    pub fn add(&mut self, gate: &Gate, database: u8, args: &Args<'_, '_>) -> bool {
        let is_throttle = args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"cl.throttle"));
        if !is_throttle || !gate.counts_in_memory() {
            return false;
        }
        let Ok(call) = ThrottleCall::parse(args) else { return false };
        let figures = CallFigures { limit: MemoryLimit::new(call.limit), quantity: call.quantity };
        let key = gate.memory_key(CallerKey { database, name: call.key });
        self.calls.push(QueuedThrottle { key, figures });
        self.pattern.replace(args);
        self.figures = Some(figures);
        true
    }

    /// Decides the calls in order; returns how many they were.
    pub fn run(&mut self, gate: &Gate, replies: &mut Replies, now: Time) -> u64 {
        let count = self.calls.len();
        let timer = gate.decision_times.start(count);
        for call in self.calls.drain(..) {
            let CallFigures { limit, quantity } = call.figures;
            let outcome = gate.throttle_memory(call.key, &limit, quantity, now);
            write_outcome(replies, &limit.limit(), quantity, &outcome);
        }
        gate.decision_times.stop(timer);
        count as u64
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
