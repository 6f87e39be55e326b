//! The record of one ban key: denials by rule, and its automatic bans.
//!
//! Pure, and the same in this process and in the central store. While the key is banned nothing is added, and a ban
//! clears all denials: one burst is one strike, whichever rules and nodes denied it.

use std::time::Duration;

use smallvec::SmallVec;

use crate::rule::BanPolicy;
use crate::time::Time;

/// Maximum number of rules whose denials are recorded per key; the latest ones are kept.
pub const MAX_RULES: usize = 64;
/// Up to this threshold every denial has its own timestamp; above it they are counted in this many steps of `within`.
pub const MAX_TIMES: u32 = 128;

/// For eviction, a strike weighs as much as this many denials.
const STRIKE_WEIGHT: u64 = 16;

/// When a rule bans, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BanConditions {
    pub after: u32,
    pub within: Duration,
    /// Duration of the first ban.
    pub first: Duration,
    /// Maximum duration of a ban; after this long without a ban, strikes are reset.
    pub max: Duration,
}

/// The number of consecutive automatic bans of a key, and the end of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Strikes {
    pub count: u32,
    pub until: Time,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Offender {
    pub strikes: Strikes,
    /// The rule that denied last is at the end.
    pub denials: SmallVec<[RuleDenials; 1]>,
}

/// The denials of a key by one rule, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleDenials {
    /// A hash of the rule's id.
    pub rule: u64,
    pub times: SmallVec<[(Time, u32); 1]>,
}

impl BanConditions {
    /// The reason text of a ban by a rule.
    pub fn reason(&self, rule: &str) -> String {
        format!("{} denials by rule {rule}", self.after)
    }

    /// The strikes after one more ban that begins at `now`.
    fn next_strikes(&self, before: Strikes, now: Time) -> Strikes {
        let count = if now >= before.until + self.max { 1 } else { before.count.saturating_add(1) };
        let doubled = self.first.saturating_mul(1u32.checked_shl(count - 1).unwrap_or(u32::MAX));
        Strikes { count, until: now + doubled.min(self.max) }
    }

    /// The timestamp under which a denial is stored: never later than the original.
    fn quantize(&self, at: Time) -> Time {
        let step = self.within.as_nanos() / u128::from(MAX_TIMES);
        match u64::try_from(step) {
            Ok(step) if self.after > MAX_TIMES && step > 0 => Time::from_nanos(at.nanos() / step * step),
            _ => at,
        }
    }
}

impl From<&BanPolicy> for BanConditions {
    fn from(policy: &BanPolicy) -> BanConditions {
        let BanPolicy { after, within, first, max, .. } = *policy;
        BanConditions { after, within, first, max }
    }
}

impl Strikes {
    /// The later of two bans of a key. A manual ban has no strikes and resets none.
    pub fn latest(self, other: Strikes) -> Strikes {
        if other.count > 0 && (other.until, other.count) > (self.until, self.count) { other } else { self }
    }
}

impl Offender {
    /// Counts denials by a rule, all with the same timestamp; returns the ban that results. `known` are the key's
    /// strikes from other sources.
    pub fn record_denials(
        &mut self,
        rule: u64,
        conditions: &BanConditions,
        known: Strikes,
        at: Time,
        count: u32,
    ) -> Option<Strikes> {
        // The key is banned, or was when the request was in flight.
        if at < self.strikes.until.max(known.until) {
            return None;
        }
        let denials = self.denials_by(rule);
        denials.add(conditions.quantize(at), count);
        denials.drop_until(at - conditions.within);
        if denials.sum() < u64::from(conditions.after) {
            return None;
        }
        self.denials.clear();
        self.strikes = conditions.next_strikes(self.strikes.latest(known), at);
        Some(self.strikes)
    }

    /// Eviction weight: denials that count, and strikes.
    pub(super) fn weight(&self) -> u64 {
        let denials: u64 = self.denials.iter().map(RuleDenials::sum).sum();
        denials.saturating_add(u64::from(self.strikes.count) * STRIKE_WEIGHT)
    }

    /// Heap bytes of the record.
    pub(super) fn heap_bytes(&self) -> usize {
        let spilled = |len: usize, size: usize| if len > 1 { len.next_power_of_two() * size } else { 0 };
        let times = |by: &RuleDenials| spilled(by.times.len(), size_of::<(Time, u32)>());
        spilled(self.denials.len(), size_of::<RuleDenials>()) + self.denials.iter().map(times).sum::<usize>()
    }

    /// The denials by a rule, moved to the end.
    fn denials_by(&mut self, rule: u64) -> &mut RuleDenials {
        let known = self.denials.iter().position(|known| known.rule == rule);
        let fresh = || RuleDenials { rule, times: SmallVec::new() };
        let denials = known.map_or_else(fresh, |at| self.denials.remove(at));
        if self.denials.len() >= MAX_RULES {
            self.denials.remove(0);
        }
        self.denials.push(denials);
        self.denials.last_mut().expect("one was just pushed")
    }
}

impl RuleDenials {
    /// Denials arrive nearly in order: threads and nodes race only briefly.
    fn add(&mut self, at: Time, count: u32) {
        let index = self.times.iter().rposition(|(time, _)| *time <= at).map_or(0, |before| before + 1);
        match index.checked_sub(1).map(|before| &mut self.times[before]) {
            Some((time, known)) if *time == at => *known = known.saturating_add(count),
            _ => self.times.insert(index, (at, count)),
        }
    }

    fn drop_until(&mut self, end: Time) {
        self.times.retain(|(time, _)| *time > end);
    }

    fn sum(&self) -> u64 {
        self.times.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const RULES: u64 = 3;

    fn conditions(rule: u64) -> BanConditions {
        let after = [1, 3, 5][rule as usize];
        BanConditions { after, within: SECOND * 20, first: SECOND * 4, max: SECOND * 30 }
    }

    /// The reference model, without bounds on memory: every denial that counts, and every ban.
    #[derive(Default)]
    struct Model {
        counted: HashMap<u64, Vec<Time>>,
        bans: Vec<(Time, Time)>,
        strikes: u32,
    }

    impl Model {
        fn denied(&mut self, rule: u64, at: Time) -> Option<Strikes> {
            if self.bans.iter().any(|(_, until)| at < *until) {
                return None;
            }
            let BanConditions { after, within, first, max } = conditions(rule);
            let counted = self.counted.entry(rule).or_default();
            counted.push(at);
            let recent = counted.iter().filter(|time| at.since(**time) < within).count();
            if recent < after as usize {
                return None;
            }
            self.counted.clear();
            let is_clean = self.bans.last().is_none_or(|(_, until)| at >= *until + max);
            self.strikes = if is_clean { 1 } else { self.strikes + 1 };
            let until = at + first.saturating_mul(2u32.saturating_pow(self.strikes - 1)).min(max);
            self.bans.push((at, until));
            Some(Strikes { count: self.strikes, until })
        }
    }

    proptest! {
        #[test]
        fn denials_ban_as_the_definition_says(
            steps in prop::collection::vec((0..RULES, 0u64..12, 1u32..3), 1..200),
        ) {
            let mut offender = Offender::default();
            let mut model = Model::default();
            let mut now = NOW;
            for (rule, seconds, requests) in steps {
                now = now + SECOND * seconds as u32;
                for _ in 0..requests {
                    let ban = offender.record_denials(rule, &conditions(rule), Strikes::default(), now, 1);
                    prop_assert_eq!(ban, model.denied(rule, now));
                }
            }
            let apart = model.bans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            prop_assert!(apart, "no ban begins while another holds");
        }
    }

    #[test]
    fn denials_of_one_moment_are_one_strike_whatever_their_number() {
        let mut offender = Offender::default();
        let ban = offender.record_denials(1, &conditions(1), Strikes::default(), NOW, 1_000);
        assert_eq!(ban, Some(Strikes { count: 1, until: NOW + SECOND * 4 }));
        assert_eq!(offender.record_denials(2, &conditions(2), Strikes::default(), NOW + SECOND, 1_000), None);
        assert_eq!(offender.denials.len(), 0);
    }

    #[test]
    fn requests_in_flight_when_a_ban_began_do_not_count() {
        let mut offender = Offender::default();
        offender
            .record_denials(0, &conditions(0), Strikes::default(), NOW, 1)
            .expect("the first denial bans");
        assert_eq!(offender.record_denials(0, &conditions(0), Strikes::default(), NOW - SECOND, 1), None);
        assert_eq!(offender.record_denials(1, &conditions(1), Strikes::default(), NOW, 9), None);
        let listed = Strikes { count: 0, until: NOW + SECOND * 60 };
        assert_eq!(
            offender.record_denials(0, &conditions(0), listed, NOW + SECOND * 59, 1),
            None,
            "banned by hand"
        );
        assert!(offender.record_denials(0, &conditions(0), listed, NOW + SECOND * 60, 1).is_some());
    }

    #[test]
    fn a_large_threshold_takes_bounded_memory_and_forgets_a_step_early_at_most() {
        let conditions = BanConditions { after: 1_000, within: SECOND * 1_280, first: SECOND, max: SECOND };
        let mut offender = Offender::default();
        for n in 0..3_000 {
            let at = NOW + SECOND * 2 * n;
            assert_eq!(
                offender.record_denials(0, &conditions, Strikes::default(), at, 1),
                None,
                "640 in the time"
            );
            assert!(offender.denials[0].times.len() <= MAX_TIMES as usize + 1);
        }
        let mut offender = Offender::default();
        let banned = (0..1_000).find(|n| {
            let at = NOW + Duration::from_millis(1_270) * *n;
            offender.record_denials(0, &conditions, Strikes::default(), at, 1).is_some()
        });
        assert_eq!(banned, Some(999));
    }

    #[test]
    fn denials_that_arrive_out_of_order_count_by_their_time() {
        let mut offender = Offender::default();
        for seconds in [10, 0, 5] {
            let ban =
                offender.record_denials(2, &conditions(2), Strikes::default(), NOW + SECOND * seconds, 1);
            assert_eq!(ban, None);
        }
        let times: Vec<_> = offender.denials[0].times.iter().map(|(at, _)| at.since(NOW).as_secs()).collect();
        assert_eq!(times, [0, 5, 10]);
    }
}
