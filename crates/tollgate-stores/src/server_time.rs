//! The time of a server's clock, to compare it with a node's.

use std::time::Duration;

use tollgate::Time;

/// What a server said its time was, and how exact that is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClockReading {
    pub server: String,
    /// The earliest and the latest time that the answer may stand for.
    pub earliest: Time,
    pub latest: Time,
    /// From the request to its answer: the clock was read in between.
    pub round_trip: Duration,
}

impl ClockReading {
    /// An answer in units of `resolution`, rounded down.
    pub fn new(
        server: impl Into<String>,
        at: Time,
        resolution: Duration,
        round_trip: Duration,
    ) -> ClockReading {
        ClockReading { server: server.into(), earliest: at, latest: at + resolution, round_trip }
    }

    /// How far the server's clock and the node's are apart at least; `answered_at` is the node's time at the answer.
    pub fn skew(&self, answered_at: Time) -> Duration {
        let sent_at = answered_at - self.round_trip;
        sent_at.since(self.latest).max(self.earliest.since(answered_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_what_neither_the_round_trip_nor_the_resolution_explains() {
        let at = |millis: u64| Time::from_secs(1_800_000_000) + Duration::from_millis(millis);
        let millis = Duration::from_millis;
        let answer = ClockReading::new("a", at(5_000), millis(1_000), millis(200));
        let skew = |node: u64| answer.skew(at(node)).as_millis();
        assert_eq!([skew(5_000), skew(5_900), skew(6_200)], [0, 0, 0]);
        assert_eq!((skew(6_201), skew(16_200)), (1, 10_000), "the node is ahead");
        assert_eq!((skew(4_999), skew(0)), (1, 5_000), "the server is ahead");
    }
}
