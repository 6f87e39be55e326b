//! Dates of the proleptic Gregorian calendar in UTC, from 1970 on, and their RFC 3339 spelling.
//!
//! Days are counted in eras of 400 years that begin on 1 March, so that the leap day is the last day
//! of its year and no table of month lengths is needed.

use super::Time;

const DAYS_PER_ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_SHIFT: u64 = 719_468;
const SECONDS_PER_DAY: u64 = 86_400;

/// Year, month (1–12) and day (1–31) of a day counted from 1970-01-01.
pub fn date_of_day(day: u64) -> (u64, u64, u64) {
    let shifted = day + EPOCH_SHIFT;
    let era = shifted / DAYS_PER_ERA;
    let day_of_era = shifted % DAYS_PER_ERA;
    let leaps = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The day, counted from 1970-01-01, of a date not before 1970.
pub fn day_of_date(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let era = year / 400;
    let year_of_era = year % 400;
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_PER_ERA + day_of_era - EPOCH_SHIFT
}

/// Writes `2027-01-01T00:00:00Z`; fractions of a second appear in milliseconds where there are any.
pub fn rfc3339(time: Time) -> String {
    let (year, month, day) = date_of_day(time.secs() / SECONDS_PER_DAY);
    let second = time.secs() % SECONDS_PER_DAY;
    let hour = second / 3600;
    let minute = second / 60 % 60;
    let second = second % 60;
    let millis = time.nanos() % super::NANOS_PER_SECOND / 1_000_000;
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Reads `2027-01-01T00:00:00Z`, with an optional fraction and an offset instead of the `Z`.
pub fn parse_rfc3339(text: &str) -> Option<Time> {
    let (date, clock) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, offset_seconds) = split_offset(clock)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let in_range = (1970..=2500).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let day_number = in_range.then(|| day_of_date(year, month, day))?;
    if date_of_day(day_number) != (year, month, day) {
        return None; // 31 April
    }
    let seconds = day_number * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(i64::try_from(seconds).ok()? - offset_seconds).ok()?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some(Time::from_nanos(seconds * super::NANOS_PER_SECOND + nanos))
}

fn split_offset(clock: &str) -> Option<(&str, i64)> {
    if let Some(clock) = clock.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let at = clock.rfind(['+', '-'])?;
    let [hours, minutes] = numbers(&clock[at + 1..], ':', [2, 2])?;
    let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
    let valid = hours < 24 && minutes < 60;
    valid.then_some((&clock[..at], if clock.as_bytes()[at] == b'-' { -seconds } else { seconds }))
}

fn numbers<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[u64; N]> {
    let mut parts = text.split(separator);
    let mut values = [0; N];
    for (value, width) in values.iter_mut().zip(widths) {
        let part = parts.next().filter(|p| p.len() == width && p.bytes().all(|b| b.is_ascii_digit()))?;
        *value = part.parse().ok()?;
    }
    parts.next().is_none().then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_until_2200_has_its_own_date_and_follows_the_day_before() {
        let mut last = (1969, 12, 31);
        for day in 0..day_of_date(2200, 1, 1) {
            let date = date_of_day(day);
            assert_eq!(day_of_date(date.0, date.1, date.2), day);
            let next_day = (last.0, last.1, last.2 + 1);
            let next_month = (last.0, last.1 + 1, 1);
            let next_year = (last.0 + 1, 1, 1);
            assert!([next_day, next_month, next_year].contains(&date), "{last:?} then {date:?}");
            last = date;
        }
        assert_eq!(date_of_day(19_782), (2024, 2, 29));
    }

    #[test]
    fn timestamps_are_parsed_and_formatted() {
        let read = |text| parse_rfc3339(text).map(Time::secs);
        assert_eq!(read("2027-01-01T00:00:00Z"), Some(1_798_761_600));
        assert_eq!(read("2027-01-01T01:30:00+01:30"), Some(1_798_761_600));
        assert_eq!(read("2027-01-01 00:00:00.25z"), Some(1_798_761_600));
        assert_eq!(rfc3339(Time::from_nanos(1_798_761_600_250_000_000)), "2027-01-01T00:00:00.250Z");
        for bad in
            ["2027-02-30T00:00:00Z", "2027-1-1T00:00:00Z", "tomorrow", "2027-01-01", "2027-01-01T24:00:00Z"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
