//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell answers it.

use std::time::Duration;

use thiserror::Error;
use tollgate::Admission;
use tollgate::internal::limit::Shape;
use tollgate::internal::store::LimitOutcome;
use tollgate::internal::time::{Period, Unit};
use tollgate::internal::{Limit, Rate};

use super::frame::Args;
use super::reply::Replies;

/// How much of a bad argument an error shows.
const MAX_SHOWN_BYTES: usize = 64;

/// A call, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThrottleCall<'a> {
    pub key: &'a [u8],
    pub limit: Limit,
    pub quantity: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ThrottleCallError {
    #[error(
        "ERR wrong number of arguments: use CL.THROTTLE key max_burst count_per_period period_seconds [quantity]"
    )]
    Arity,
    #[error("ERR {name} is not an integer: {}", .text.escape_ascii())]
    NotInteger { name: &'static str, text: Vec<u8> },
    #[error("ERR {name} is out of range: {number}")]
    Range { name: &'static str, number: i64 },
    #[error("ERR {0}")]
    Limit(String),
}

impl<'a> ThrottleCall<'a> {
    pub fn parse(args: &Args<'a, '_>) -> Result<ThrottleCall<'a>, ThrottleCallError> {
        let mut args_after_name = args.iter().skip(1);
        if !(5..=6).contains(&args.len()) {
            return Err(ThrottleCallError::Arity);
        }
        let mut next = || args_after_name.next().ok_or(ThrottleCallError::Arity);
        let key = next()?;
        let max_burst = number("max_burst", next()?, 0)?;
        let count = number("count_per_period", next()?, 1)?;
        let period = number("period", next()?, 1)?;
        let quantity = if args.len() == 6 { number("quantity", next()?, 0)? } else { 1 };
        let period = Period::new(period, Unit::Second)
            .ok_or(ThrottleCallError::Range { name: "period", number: period as i64 })?;
        let rate = Rate::new(count, period).map_err(|error| ThrottleCallError::Limit(error.to_string()))?;
        let limit = Limit::new(rate, Shape::Cell { burst: max_burst.saturating_add(1) })
            .map_err(|error| ThrottleCallError::Limit(error.to_string()))?;
        Ok(ThrottleCall { key, limit, quantity })
    }
}

fn number(name: &'static str, text: &[u8], least: i64) -> Result<u64, ThrottleCallError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let shown = &text[..text.len().min(MAX_SHOWN_BYTES)];
    let number: i64 = parsed.ok_or_else(|| ThrottleCallError::NotInteger { name, text: shown.to_vec() })?;
    if number < least {
        return Err(ThrottleCallError::Range { name, number });
    }
    Ok(number.unsigned_abs())
}

/// Limited or not, the capacity, what remains, seconds until a retry (or -1) and until the key is as new.
pub fn write_outcome(replies: &mut Replies, limit: &Limit, quantity: u64, outcome: &LimitOutcome) {
    let admission = match quantity {
        0 => peeked(limit, outcome),
        _ => outcome.decision.admission,
    };
    let retry_after = match admission {
        Admission::Deny { retry_after } => seconds(retry_after),
        Admission::Allow { .. } | Admission::Never => -1,
    };
    let is_limited = !matches!(admission, Admission::Allow { .. });
    replies.limited += u64::from(is_limited);
    replies.integers([
        i64::from(is_limited),
        integer(limit.capacity()),
        integer(outcome.remaining),
        retry_after,
        seconds(outcome.reset_after),
    ]);
}

/// A quantity of zero is limited while the key has used more than the whole capacity, by calls with other figures.
fn peeked(limit: &Limit, outcome: &LimitOutcome) -> Admission {
    let rate = limit.rate();
    let nanos = u128::from(rate.period().nanos()) * u128::from(limit.capacity()) / u128::from(rate.count());
    let capacity = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    match outcome.reset_after.checked_sub(capacity) {
        Some(retry_after) if !retry_after.is_zero() => Admission::Deny { retry_after },
        _ => outcome.decision.admission,
    }
}

/// Rounded up, so that a retry is not too early.
fn seconds(duration: Duration) -> i64 {
    integer(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
