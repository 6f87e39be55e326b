//! A rate: a number of requests in a period, as in `5/m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::time::{Period, Unit};

/// `count` per `period`. Zero denies everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    count: u64,
    period: Period,
}

impl Rate {
    /// At most one per nanosecond, the resolution of time.
    pub fn new(count: u64, period: Period) -> Result<Rate, RateError> {
        if count > period.nanos() {
            return Err(RateError::TooFast { rate: format!("{count}/{period}") });
        }
        Ok(Rate { count, period })
    }

    /// The same period with a lower number.
    pub(crate) fn with_count(self, count: u64) -> Rate {
        Rate { count: count.min(self.count), ..self }
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    pub const fn period(&self) -> Period {
        self.period
    }

    /// The tokens per `tick`, as a fraction in lowest terms.
    pub(crate) fn tokens_per_tick(&self, tick: Duration) -> (u128, u128) {
        let share = u128::from(self.count) * tick.as_nanos();
        let token = u128::from(self.period.nanos());
        let divisor = greatest_common_divisor(share, token);
        (share / divisor, token / divisor)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.period)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads `5/m`, `30/10s`, `1000/month`, `5 requests/minute`, `5 requests per minute`.
    fn from_str(text: &str) -> Result<Rate, RateError> {
        let rate = || shorten(text);
        let (count, period) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or(RateError::NoPeriod { rate: rate() })?;
        let count = parse_count(count.trim(), text)?;
        let period = period.trim();
        let digits = period.bytes().take_while(u8::is_ascii_digit).count();
        let number = &period[..digits];
        let word = period[digits..].trim();
        if word.is_empty() {
            return Err(RateError::NoUnit { rate: rate() });
        }
        let unit = Unit::parse(word).ok_or_else(|| RateError::Unit { unit: shorten(word), rate: rate() })?;
        let number = match number {
            "" => 1,
            digits => digits.parse().unwrap_or(u64::MAX),
        };
        if number == 0 {
            return Err(RateError::EmptyPeriod { rate: rate() });
        }
        let period = Period::new(number, unit).ok_or_else(|| RateError::LongPeriod { rate: rate() })?;
        Rate::new(count, period)
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        let rest = a % b;
        a = b;
        b = rest;
    }
    a
}

fn parse_count(count: &str, text: &str) -> Result<u64, RateError> {
    let (number, noun) = count.split_once(' ').map_or((count, ""), |(number, noun)| (number, noun.trim()));
    let number = number.replace('_', "");
    let bad = |why: &'static str| RateError::Count { why, rate: shorten(text) };
    if number.starts_with('-') {
        return Err(bad("negative number"));
    }
    if number.contains(['.', ',']) {
        return Err(bad("not a whole number (3/2s is one and a half a second)"));
    }
    if !matches!(noun, "" | "req" | "reqs" | "request" | "requests" | "hit" | "hits") {
        return Err(bad("unknown word after the number (write '5/minute' or '5 requests/minute')"));
    }
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad("no number"));
    }
    number.parse().map_err(|_| bad("number too large"))
}

/// Truncates input that is quoted in messages.
fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RateError {
    #[error("no period in '{rate}': write a rate such as 5/m, 30/10s or 1000/month")]
    NoPeriod { rate: String },
    #[error("no unit in '{rate}': use s, m, h, d, week, month, year")]
    NoUnit { rate: String },
    #[error("unknown unit '{unit}' in '{rate}': use s, m, h, d, week, month, year")]
    Unit { unit: String, rate: String },
    #[error("{why} in '{rate}': write a rate such as 5/m, 30/10s or 1000/month")]
    Count { why: &'static str, rate: String },
    #[error("empty period in '{rate}': a period is at least one second")]
    EmptyPeriod { rate: String },
    #[error("period too long in '{rate}': at most a hundred years")]
    LongPeriod { rate: String },
    #[error("'{rate}' is too fast: at most 1000000000 a second")]
    TooFast { rate: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let cases = [
            ("2/s", "2/s"),
            ("5/m", "5/m"),
            ("5/min", "5/m"),
            ("10/h", "10/h"),
            ("100/d", "100/d"),
            ("7/week", "7/w"),
            ("30/10s", "30/10s"),
            ("4/2s", "4/2s"),
            ("1000/month", "1000/month"),
            ("9/y", "9/y"),
            ("0/m", "0/m"),
            ("5 requests/minute", "5/m"),
            ("5 requests per minute", "5/m"),
            (" 1_000 / 5 minutes ", "1000/5m"),
        ];
        for (text, written) in cases {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.to_string()), Ok(written.to_owned()), "{text}");
        }
    }

    #[test]
    fn bad_rates_say_what_is_wrong() {
        let cases = [
            ("5/fortnight", "unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month"),
            ("-5/m", "negative number in '-5/m'"),
            ("5", "no period in '5'"),
            ("5/", "no unit in '5/'"),
            ("5/10", "no unit in '5/10'"),
            ("5/0s", "empty period in '5/0s'"),
            ("1.5/s", "not a whole number"),
            ("five/m", "no number in 'five/m'"),
            ("/m", "no number in '/m'"),
            ("5 apples/m", "unknown word after the number"),
            ("1000000001/s", "too fast"),
            ("1/200y", "period too long"),
            ("99999999999999999999/m", "number too large"),
        ];
        for (text, part) in cases {
            let message = text.parse::<Rate>().expect_err(text).to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
