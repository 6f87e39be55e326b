//! Requests that wait: held until their release time, or queued and sent later.

use tollgate_server::testing::enqueue_and_answer;
use tollgate_server::testing::proxy::{HoldRoom, Leaving, RetryRoom};

use super::{Case, Work, case, work};

pub(super) const CASES: &[Case] = &[
    case("hold: requests of one key that are released", 2_000, |size| hold(size, Leaving::InOrder)),
    case("hold: requests of one key that leave from the middle", 2_000, |size| {
        hold(size, Leaving::FromTheMiddle)
    }),
    case("queue: requests that are enqueued and answered", 2_000, |size| {
        work(size, |count| enqueue_and_answer(*count))
    }),
    case("queue: times of many requests of one key", 4_000, |size| schedule(1, size)),
    // Twice as many are still remembered: a scan of the table would show.
    case("queue: times of keys that are all remembered", 16_000, |size| schedule(size, 1)),
    case("queue: times of more keys than are remembered", 40_000, |size| schedule(size, 1)),
];

fn schedule(keys: usize, each: usize) -> Work {
    let room = RetryRoom::new();
    Box::new(move || room.schedule(keys, each))
}

fn hold(count: usize, leaving: Leaving) -> Work {
    let room = HoldRoom::new();
    Box::new(move || room.hold(count, leaving))
}
