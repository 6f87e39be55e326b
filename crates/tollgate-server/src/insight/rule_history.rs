//! The counts of one rule over time, the clients that it limits, and how much of its limits is used.

use tollgate::internal::rule::RuleId;

use super::batch::{RuleCount, USED_STEPS};
use super::hyper_log_log::HyperLogLog;
use super::point_ring::{Point, PointRing};

/// Seconds and minutes that are kept in memory: an hour, and a day.
pub const MAX_SECONDS: usize = 3_600;
pub const MAX_MINUTES: usize = 1_440;
pub const MINUTE: u64 = 60;
pub const HOUR: u64 = 3_600;
/// Limited clients of the last hour are counted in slots of ten minutes, aligned to the clock, plus the current one.
const CLIENT_SLOT: u64 = 600;
const CLIENT_SLOTS: usize = 7;

/// How fast activity is forgotten, per second: a rule stays among the most active for minutes.
const ACTIVITY_DECAY: f64 = 0.99;

pub struct RuleHistory {
    /// `None` for the total and for all other rules.
    pub rule: Option<RuleId>,
    /// The second that is not complete yet.
    pub current: Point,
    pub seconds: PointRing,
    pub minutes: PointRing,
    /// Requests near the limit: in the current second, and in each of the last 60.
    near: u32,
    near_seconds: [u32; MINUTE as usize],
    /// Requests near the limit since the series began.
    near_total: u64,
    /// Requests by the share of the limit that is used: in the current minute and in the last one.
    used: [[u32; USED_STEPS]; 2],
    limited_second: HyperLogLog,
    limited_minute: HyperLogLog,
    limited_slots: [HyperLogLog; CLIENT_SLOTS],
    second: u64,
    /// Decisions, with exponential decay.
    activity: f64,
}

impl RuleHistory {
    pub const MAX_BYTES: usize = size_of::<RuleHistory>()
        + (MAX_SECONDS + MAX_MINUTES) * size_of::<Point>()
        + (2 + CLIENT_SLOTS) * HyperLogLog::MAX_BYTES
        + RuleId::MAX_LEN;

    /// A series of a node that has counted since `started`; `second` is the current one.
    pub fn new(rule: Option<RuleId>, started: u64, second: u64) -> RuleHistory {
        let mut seconds = PointRing::new(MAX_SECONDS, started);
        let mut minutes = PointRing::new(MAX_MINUTES, started / MINUTE);
        seconds.advance(second);
        minutes.advance(second / MINUTE);
        RuleHistory {
            rule,
            current: Point::default(),
            seconds,
            minutes,
            near: 0,
            near_seconds: [0; MINUTE as usize],
            near_total: 0,
            used: [[0; USED_STEPS]; 2],
            limited_second: HyperLogLog::default(),
            limited_minute: HyperLogLog::default(),
            limited_slots: Default::default(),
            second,
            activity: 0.0,
        }
    }

    pub fn add(&mut self, count: &RuleCount) {
        self.current.add(&Point {
            allowed: count.allowed,
            denied: count.denied,
            shadow_denied: count.shadow_denied,
            ..Point::default()
        });
        self.add_near(count.near);
        for (own, count) in self.used[0].iter_mut().zip(count.used) {
            *own = own.saturating_add(count);
        }
    }

    pub fn add_near(&mut self, near: u32) {
        self.near += near;
        self.near_total += u64::from(near);
    }

    pub fn add_limited(&mut self, fingerprint: u64) {
        self.limited_second.add(fingerprint);
        self.limited_minute.add(fingerprint);
        self.limited_slots[slot(self.second)].add(fingerprint);
    }

    /// Completes the current second and begins `next`. Returns the completed one.
    pub fn end_second(&mut self, next: u64) -> Point {
        let mut ended = std::mem::take(&mut self.current);
        self.activity =
            self.activity * ACTIVITY_DECAY + ended.decisions() as f64 + f64::from(ended.shadow_denied);
        if ended.denied + ended.banned > 0 {
            ended.clients_limited = self.limited_second.estimate() as u32;
            let minute = self.minutes.current();
            minute.add(&ended);
            minute.clients_limited = self.limited_minute.estimate() as u32;
            self.limited_second.clear();
        } else if !ended.is_empty() {
            self.minutes.current().add(&ended);
        }
        *self.seconds.current() = ended;
        self.near_seconds[(self.second % MINUTE) as usize] = std::mem::take(&mut self.near);
        self.advance(next);
        ended
    }

    fn advance(&mut self, next: u64) {
        for skipped in (self.second + 1..next).rev().take(MINUTE as usize) {
            self.near_seconds[(skipped % MINUTE) as usize] = 0;
        }
        let minutes = next / MINUTE - self.second / MINUTE;
        if minutes > 0 {
            self.limited_minute.clear();
            let ended = std::mem::replace(&mut self.used[0], [0; USED_STEPS]);
            self.used[1] = if minutes == 1 { ended } else { [0; USED_STEPS] };
        }
        let slots = next / CLIENT_SLOT - self.second / CLIENT_SLOT;
        for ahead in 1..=slots.min(CLIENT_SLOTS as u64) {
            self.limited_slots[slot(self.second + ahead * CLIENT_SLOT)].clear();
        }
        self.second = next;
        self.seconds.advance(next);
        self.minutes.advance(next / MINUTE);
    }

    pub fn activity(&self) -> f64 {
        self.activity + self.current.decisions() as f64
    }

    /// An estimate of the different clients limited in the last hour, to ten minutes.
    pub fn clients_limited(&self) -> u64 {
        let mut all = HyperLogLog::default();
        self.limited_slots.iter().for_each(|slot| all.merge(slot));
        all.estimate()
    }

    /// Requests near the limit in the last minute, the current second included.
    pub fn near_limit(&self) -> u64 {
        u64::from(self.near) + self.near_seconds.iter().map(|near| u64::from(*near)).sum::<u64>()
    }

    /// Requests near the limit since the series began, those of absorbed ones included.
    pub fn near_limit_total(&self) -> u64 {
        self.near_total
    }

    /// Requests of the last one to two minutes by the share of the limit that their key has used, in equal steps.
    pub fn used(&self) -> Vec<u64> {
        let both = self.used[0].iter().zip(&self.used[1]);
        both.map(|(now, before)| u64::from(*now) + u64::from(*before)).collect()
    }

    /// The share of the limit that a tenth, two tenths … of the requests have used at most, in the last one to two
    /// minutes; empty without requests.
    pub fn headroom(&self) -> Vec<f64> {
        headroom(&self.used())
    }

    /// The counts of the last 60 seconds, the current one included.
    pub fn last_minute(&self) -> Point {
        let mut sum = self.current;
        let from = (self.second + 1).saturating_sub(MINUTE);
        self.seconds.range(from, self.second).for_each(|(_, point)| sum.add(&point));
        sum
    }

    /// Adds the history of a rule that is no longer among the most active.
    pub fn absorb(&mut self, other: &RuleHistory) {
        self.current.add(&other.current);
        self.seconds.absorb(&other.seconds);
        self.minutes.absorb(&other.minutes);
        self.near += other.near;
        self.near_total += other.near_total;
        self.limited_minute.merge(&other.limited_minute);
        for (own, other) in self.limited_slots.iter_mut().zip(&other.limited_slots) {
            own.merge(other);
        }
    }
}

/// The share of the limit that a tenth, two tenths … of the requests have used at most; empty without requests.
/// `used` has the requests by that share, in equal steps.
pub fn headroom(used: &[u64]) -> Vec<f64> {
    let total = used.iter().fold(0u128, |sum, count| sum + u128::from(*count));
    if total == 0 {
        return Vec::new();
    }
    let decile = |tenth: u128| {
        let mut seen = 0;
        let found = used.iter().position(|count| {
            seen += u128::from(*count);
            seen * 10 >= total * tenth
        });
        (found.unwrap_or(used.len() - 1) + 1) as f64 / used.len() as f64
    };
    (1..=10).map(decile).collect()
}

fn slot(second: u64) -> usize {
    (second / CLIENT_SLOT) as usize % CLIENT_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn count(allowed: u32, denied: u32, used: usize) -> RuleCount {
        let mut steps = [0; USED_STEPS];
        steps[used] = allowed + denied;
        let id = RuleId::new("login").expect("a valid id");
        RuleCount { id, allowed, denied, shadow_denied: 0, near: 0, used: steps }
    }

    #[test]
    fn seconds_and_minutes_have_the_same_counts() {
        let mut series = RuleHistory::new(None, START, START);
        for second in START..START + 90 {
            series.add(&count(3, 1, 0));
            series.add_limited((second % 5).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            series.end_second(second + 1);
        }
        let seconds: Vec<_> = series.seconds.range(START, START + 89).collect();
        assert_eq!(seconds.len(), 90);
        assert!(
            seconds
                .iter()
                .all(|(_, point)| (point.allowed, point.denied, point.clients_limited) == (3, 1, 1))
        );
        let minutes: Vec<_> = series.minutes.range(0, u64::MAX).map(|(_, point)| point).collect();
        assert_eq!((minutes[0].allowed, minutes[0].denied, minutes[0].clients_limited), (180, 60, 5));
        assert_eq!((minutes[1].allowed, minutes[1].denied, minutes[1].clients_limited), (90, 30, 5));
        assert_eq!(series.clients_limited(), 5);
        assert_eq!(series.last_minute().allowed, 59 * 3, "the current second is empty");
        series.end_second(START + 10_000);
        assert_eq!((series.clients_limited(), series.last_minute()), (0, Point::default()));
    }

    #[test]
    fn headroom_is_the_deciles_of_what_is_used() {
        let mut series = RuleHistory::new(None, START, START);
        assert_eq!(series.headroom(), Vec::<f64>::new());
        (0..USED_STEPS).for_each(|used| series.add(&count(1, 0, used)));
        assert_eq!(series.headroom(), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
        series.end_second(START + 60);
        assert_eq!(series.headroom().len(), 10, "of the last minute");
        series.end_second(START + 120);
        assert_eq!(series.headroom(), Vec::<f64>::new());
    }
}
