//! Durations in text form: `50ms`, `1s`, `10m`, `24h`, `7d`.

use std::time::Duration;

/// The maximum of all settings: a hundred years.
const MAX_SECONDS: u64 = 100 * 365 * 86_400;

/// Reads a whole number with a unit: ms, s, m, h, d or w.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = &text[..digits];
    let unit = text[digits..].trim();
    let bad =
        |why: &str| Err(format!("{why} in '{text}': write a duration such as 50ms, 30s, 10m, 1h or 7d"));
    let Ok(number) = number.parse::<u64>() else {
        return bad("no number");
    };
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number.min(MAX_SECONDS * 1000))),
        "" => return bad("no unit"),
        "s" | "sec" | "second" | "seconds" => 1,
        "m" | "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 604_800,
        other => return bad(&format!("unknown unit '{other}'")),
    };
    match number.checked_mul(seconds) {
        Some(seconds) if seconds <= MAX_SECONDS => Ok(Duration::from_secs(seconds)),
        _ => bad("more than a hundred years"),
    }
}

/// Writes a duration in the largest unit that keeps it whole.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_millis() != 0 || seconds == 0 {
        return format!("{}ms", duration.as_millis());
    }
    for (unit, length) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
        if seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_formatted() {
        for text in ["50ms", "30s", "10m", "1h", "7d", "1500ms"] {
            assert_eq!(format_duration(parse_duration(text).expect(text)), text);
        }
        assert_eq!(parse_duration("24h"), Ok(Duration::from_secs(86_400)));
        for bad in ["", "s", "-1s", "1.5s", "10", "3 parsecs", "99999999999999999999s", "9999999w"] {
            let message = parse_duration(bad).expect_err(bad);
            assert!(message.contains(&format!("'{bad}'")), "{message}");
        }
    }
}
