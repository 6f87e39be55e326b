//! The calendar by counting it out: every boundary from 1970 to 2400 in a list.

use tollgate::internal::time::{Period, Unit};

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * SECOND_NS;

/// `times` units: the period of a rate.
#[derive(Clone, Copy, Debug)]
pub struct Every {
    pub times: u64,
    pub unit: Unit,
}

impl Every {
    pub fn period(self) -> Period {
        Period::new(self.times, self.unit).expect("a valid period")
    }

    /// Its length: a month has 30 days, a year 365.
    pub fn nanos(self) -> u64 {
        let seconds = match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        };
        self.times * seconds * SECOND_NS
    }
}

/// Boundaries in time, of even length or as people count months.
pub enum Calendar {
    Even(u64),
    Listed(Vec<u64>),
}

impl Calendar {
    pub fn of(every: Every) -> Calendar {
        let starts: Vec<u64> = match every.unit {
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => return Calendar::Even(every.nanos()),
            // 1970 began on a Thursday: in the week of Monday 29 December, before the epoch.
            Unit::Week => (0..22_000).map(|week: u64| (week * 7).saturating_sub(3)).collect(),
            Unit::Month => (1970..2400).flat_map(months_of).scan(0, begin).collect(),
            Unit::Year => {
                (1970..2400).map(|year| months_of(year).iter().sum::<u64>()).scan(0, begin).collect()
            }
        };
        let every_few = starts.into_iter().step_by(every.times as usize);
        Calendar::Listed(every_few.map(|day| day * DAY_NS).collect())
    }

    /// The last boundary that is not after `time`.
    pub fn start(&self, time: u64) -> u64 {
        match self {
            Calendar::Even(length) => time - time % length,
            Calendar::Listed(starts) => starts[starts.partition_point(|start| *start <= time) - 1],
        }
    }

    /// The first boundary after `time`; never, behind the end of the list.
    pub fn next(&self, time: u64) -> u64 {
        match self {
            Calendar::Even(length) => (time - time % length).saturating_add(*length),
            Calendar::Listed(starts) => {
                let after = starts.partition_point(|start| *start <= time);
                starts.get(after).copied().unwrap_or(u64::MAX)
            }
        }
    }
}

fn months_of(year: u64) -> [u64; 12] {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Turns lengths in days into the days on which they begin.
fn begin(day: &mut u64, length: u64) -> Option<u64> {
    let start = *day;
    *day += length;
    Some(start)
}
