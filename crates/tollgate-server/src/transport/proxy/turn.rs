//! A request's wait for its turn.

use std::sync::atomic::Ordering;

use hyper::header::EXPECT;
use tollgate::{Time, Verdict};

use crate::gate::Gate;
use crate::transport::proxy::budget::Share;
use crate::transport::proxy::exchange::{Entrance, Refused, Visit};
use crate::transport::proxy::forward::Failure;
use crate::transport::proxy::settlement::Charges;

/// How much of a body is read while its request waits.
const AHEAD_BYTES: usize = 16 << 10;
/// Of all bodies whose requests wait.
pub const MAX_AHEAD_BYTES: usize = 64 << 20;

impl Entrance {
    /// Returns when it is the request's turn. Who goes away meanwhile, or finds no room, gives everything back.
    pub async fn wait(
        &self,
        visit: &mut Visit,
        charges: &mut Charges,
        verdict: &Verdict,
        decided_at: Time,
    ) -> Result<(), Refused> {
        let behind = charges.queue().is_some_and(|queue| self.proxy.held.is_busy_for(queue));
        if verdict.delay.is_zero() && !behind {
            charges.waited(None);
            return Ok(());
        }
        let gate = &self.proxy.gate;
        let mut stay = Stay { gate, charges, over: false };
        let Some((queue, place)) = stay.charges.take_place() else { return Ok(()) };
        let (rule, mut place) = place.unzip();
        let (turn, max_held) = (decided_at + verdict.delay, visit.route.config.max_held);
        let Some(mut held) = self.proxy.held.enter(gate, queue, turn, &mut place, max_held) else {
            self.proxy.counts.not_held.fetch_add(1, Ordering::Relaxed);
            place.into_iter().for_each(|place| gate.refund(place));
            return Err(Refused::Full(verdict.delay));
        };
        self.proxy.counts.held.fetch_add(1, Ordering::Relaxed);
        // Its body is read ahead a little: only then the end of the connection is seen behind it.
        let mut ahead = Share::of(&self.proxy.read_ahead);
        let mut reads = !visit.parts.headers.contains_key(EXPECT) && ahead.grow_to(AHEAD_BYTES);
        let place = loop {
            tokio::select! {
                place = held.turn() => break place,
                more = visit.upload.read_ahead(), if reads => {
                    reads = more.map_err(Failure::from)? && visit.upload.prefix().len() < AHEAD_BYTES;
                }
            }
        };
        stay.over = true;
        stay.charges.waited(rule.zip(place));
        Ok(())
    }
}

/// A wait in a queue: cut short, all that was charged is given back.
struct Stay<'a> {
    gate: &'a Gate,
    charges: &'a mut Charges,
    over: bool,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.charges.undo(self.gate);
        }
    }
}
