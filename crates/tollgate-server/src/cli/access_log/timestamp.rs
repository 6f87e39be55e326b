//! Times as logs write them: `10/Oct/2025:13:55:36 -0700`, RFC 3339, or a number since 1970.

use tollgate::Time;
use tollgate::internal::time::calendar;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// A time in any of the spellings.
pub fn parse(text: &str) -> Option<Time> {
    let bytes = text.as_bytes();
    match bytes.get(2) {
        Some(b'/') => common(bytes),
        _ if bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') => since_epoch(text),
        _ => calendar::parse_rfc3339(text).or_else(|| calendar::parse_rfc3339(&with_colon(text)?)),
    }
}

/// `10/Oct/2025:13:55:36 -0700`
pub fn common(text: &[u8]) -> Option<Time> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if text.len() != 26 || separators.iter().any(|(at, byte)| text[*at] != *byte) {
        return None;
    }
    let month = MONTHS.iter().position(|name| name[..] == text[3..6])? as u64 + 1;
    let day = number(&text[0..2])?;
    let year = number(&text[7..11])?;
    let hour = number(&text[12..14])?;
    let minute = number(&text[15..17])?;
    let second = number(&text[18..20])?;
    let offset = number(&text[22..24])? * 3600 + number(&text[24..26])? * 60;
    let is_valid = (1970..=2500).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60 // a leap second
        && calendar::date_of_day(calendar::day_of_date(year, month, day)) == (year, month, day);
    if !is_valid {
        return None;
    }
    let local = calendar::day_of_date(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = match text[21] {
        b'+' => local.checked_sub(offset)?,
        b'-' => local + offset,
        _ => return None,
    };
    Some(Time::from_secs(seconds))
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
}

/// A number of seconds with a fraction, or of milli-, micro- or nanoseconds: told apart by its size.
fn since_epoch(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || whole.len() > 19 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let unit: u64 = match whole {
        0..100_000_000_000 => 1_000_000_000,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let digits = &fraction[..fraction.len().min(9)];
    let part = number(digits.as_bytes())? * unit / 10u64.pow(digits.len() as u32);
    Some(Time::from_nanos(whole.checked_mul(unit)?.checked_add(part)?))
}

/// `+0200` as `+02:00`
fn with_colon(text: &str) -> Option<String> {
    let at = text.len().checked_sub(2)?;
    let offset = text.len().checked_sub(5)?;
    let has_sign = matches!(text.as_bytes()[offset], b'+' | b'-');
    (has_sign && text.is_char_boundary(at)).then(|| format!("{}:{}", &text[..at], &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_the_same_time() {
        let expected = Time::from_secs(1_767_225_600);
        for text in [
            "01/Jan/2026:00:00:00 +0000",
            "01/Jan/2026:02:00:00 +0200",
            "31/Dec/2025:17:00:00 -0700",
            "2026-01-01T00:00:00Z",
            "2026-01-01T02:00:00+0200",
            "2026-01-01T02:00:00+02:00",
            "1767225600",
            "1767225600.000",
            "1767225600000",
            "1767225600000000",
            "1767225600000000000",
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        assert_eq!(parse("1767225600.25"), Some(Time::from_nanos(1_767_225_600_250_000_000)));
    }

    #[test]
    fn what_is_not_a_time_is_rejected() {
        for text in [
            "",
            ".",
            "1.2.3",
            "31/Feb/2026:00:00:00 +0000",
            "01/Foo/2026:00:00:00 +0000",
            "01/Jan/2026",
            "99999999999999999999",
            "2026-13-01T00:00:00Z",
            "é",
            "01/é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
