//! The period of a rate: a number of seconds, minutes, … years.
//!
//! A period has two meanings. As a *length* a month is 30 days and a year 365. As a *calendar* it counts aligned
//! windows from 1970 in UTC: weeks begin on Monday, months and years are calendar ones.

use std::fmt;

use super::calendar::{date_of_day, day_of_date};
use super::{NANOS_PER_SECOND, Time};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// Reads a unit: `s`, `sec`, `second`, `seconds`, ….
    pub fn parse(word: &str) -> Option<Unit> {
        Some(match word.to_ascii_lowercase().as_str() {
            "s" | "sec" | "secs" | "second" | "seconds" => Unit::Second,
            "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => Unit::Hour,
            "d" | "day" | "days" => Unit::Day,
            "w" | "week" | "weeks" => Unit::Week,
            "mo" | "month" | "months" => Unit::Month,
            "y" | "yr" | "year" | "years" => Unit::Year,
            _ => return None,
        })
    }

    /// The length in seconds, with 30 days to a month and 365 to a year.
    pub const fn secs(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 604_800,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        }
    }

    pub(crate) const fn symbol(self) -> &'static str {
        match self {
            Unit::Second => "s",
            Unit::Minute => "m",
            Unit::Hour => "h",
            Unit::Day => "d",
            Unit::Week => "w",
            Unit::Month => "month",
            Unit::Year => "y",
        }
    }
}

/// `count` units, between a second and a hundred years.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Period {
    count: u32,
    unit: Unit,
}

impl Period {
    pub const MAX_SECONDS: u64 = 100 * Unit::Year.secs();
    pub const SECOND: Period = Period { count: 1, unit: Unit::Second };
    pub const MINUTE: Period = Period { count: 1, unit: Unit::Minute };
    pub const HOUR: Period = Period { count: 1, unit: Unit::Hour };
    pub const DAY: Period = Period { count: 1, unit: Unit::Day };

    /// `None` for zero units and for more than a hundred years.
    pub fn new(count: u64, unit: Unit) -> Option<Period> {
        let seconds = count.checked_mul(unit.secs())?;
        let count = u32::try_from(count).ok()?;
        (count > 0 && seconds <= Self::MAX_SECONDS).then_some(Period { count, unit })
    }

    pub const fn count(self) -> u32 {
        self.count
    }

    pub const fn unit(self) -> Unit {
        self.unit
    }

    pub const fn secs(self) -> u64 {
        self.count as u64 * self.unit.secs()
    }

    pub const fn nanos(self) -> u64 {
        self.secs() * NANOS_PER_SECOND
    }

    /// The number of the calendar window that contains `time`.
    pub fn index_at(self, time: Time) -> u64 {
        let seconds = time.secs();
        let days = seconds / Unit::Day.secs();
        let units = match self.unit {
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => seconds / self.unit.secs(),
            Unit::Week => (days + DAYS_FROM_MONDAY_TO_EPOCH) / 7,
            Unit::Month => {
                let (year, month, _) = date_of_day(days);
                (year - 1970) * 12 + month - 1
            }
            Unit::Year => date_of_day(days).0 - 1970,
        };
        units / u64::from(self.count)
    }

    /// When calendar window `index` begins.
    pub fn start_of(self, index: u64) -> Time {
        let units = index.saturating_mul(u64::from(self.count));
        let days = match self.unit {
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => {
                return Time::from_secs(units.saturating_mul(self.unit.secs()));
            }
            Unit::Week => units.saturating_mul(7).saturating_sub(DAYS_FROM_MONDAY_TO_EPOCH),
            Unit::Month => day_of_date(1970 + units.min(MAX_YEARS * 12) / 12, units % 12 + 1, 1),
            Unit::Year => day_of_date(1970 + units.min(MAX_YEARS), 1, 1),
        };
        Time::from_secs(days.saturating_mul(Unit::Day.secs()))
    }
}

/// 1970-01-01 was a Thursday.
const DAYS_FROM_MONDAY_TO_EPOCH: u64 = 3;
/// Beyond the range of [`Time`].
const MAX_YEARS: u64 = 600;

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count != 1 {
            write!(f, "{}", self.count)?;
        }
        f.write_str(self.unit.symbol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::calendar::parse_rfc3339;

    fn check(period: Period, inside: &str, start: &str, end: &str) {
        let at = |text| parse_rfc3339(text).expect("a valid timestamp");
        let index = period.index_at(at(inside));
        assert_eq!(period.start_of(index), at(start), "start of {period} around {inside}");
        assert_eq!(period.start_of(index + 1), at(end), "end of {period} around {inside}");
        assert_eq!(period.index_at(at(start)), index);
        assert_eq!(period.index_at(Time::from_nanos(at(end).nanos() - 1)), index);
    }

    #[test]
    fn calendar_windows_begin_where_people_expect() {
        let month = Period::new(1, Unit::Month).expect("valid");
        let week = Period::new(1, Unit::Week).expect("valid");
        let quarter = Period::new(3, Unit::Month).expect("valid");
        let year = Period::new(1, Unit::Year).expect("valid");
        let ten = Period::new(10, Unit::Second).expect("valid");
        check(month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z");
        check(month, "2027-12-31T23:59:59Z", "2027-12-01T00:00:00Z", "2028-01-01T00:00:00Z");
        check(quarter, "2027-05-05T00:00:00Z", "2027-04-01T00:00:00Z", "2027-07-01T00:00:00Z");
        check(week, "2027-01-03T23:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z");
        check(year, "2028-12-31T23:59:59Z", "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z");
        check(Period::MINUTE, "2027-01-01T11:01:05Z", "2027-01-01T11:01:00Z", "2027-01-01T11:02:00Z");
        check(ten, "2027-01-01T11:01:19.9Z", "2027-01-01T11:01:10Z", "2027-01-01T11:01:20Z");
    }

    #[test]
    fn empty_and_endless_periods_are_rejected() {
        assert_eq!(Period::new(0, Unit::Second), None);
        assert_eq!(Period::new(101, Unit::Year), None);
        assert_eq!(Period::new(u64::MAX, Unit::Year), None);
    }
}
