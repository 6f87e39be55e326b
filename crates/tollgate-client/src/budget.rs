//! The limits that the caller has given, counted in memory or in a store that several processes share.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tollgate::internal::document::Problems;
use tollgate::internal::engine::EngineSetup;
use tollgate::internal::limit::{Rate, Refill, Shape, WindowStart};
use tollgate::internal::store::ChargeReceipt;
#[cfg(feature = "redis")]
use tollgate::internal::store::DeniedHits;
use tollgate::internal::{EngineCore, EngineVerdict, Limit, PolicySnapshot};
use tollgate::{Hit, Time};
#[cfg(feature = "redis")]
use tollgate_stores::counters::central::CentralStore;

use crate::BuildError;
use crate::learned::SpacedRate;

/// Memory for counters, reserved and used as keys arrive.
const MEMORY_BYTES: usize = 64 << 20;
/// Separates the counters from those of a server that uses the same store.
const DOMAIN: &str = "client";
/// A window with at most this many requests is kept exactly.
const MAX_LOGGED: u64 = 10_000;
/// Larger limits are counted in this many steps of the window, or in seconds; a window of fewer seconds would lose too much,
/// so its calls are spread evenly.
const WINDOW_STEPS: u64 = 200;
const MIN_STEPPED_WINDOW: u64 = 60;
/// The burst of calls that are spaced because the server has refused some.
const MAX_SPACED_BURST: u32 = 1000;
/// Of evenly spread calls, one part in this many may be sent at once.
const SPREAD_BURST_DIVISOR: u64 = 100;
/// Limits in memory are counted by a clock that is slower by one part in this many: a request that is delayed on its way,
/// followed by one that is not, would otherwise arrive too early for the server.
const SLOWDOWN_DIVISOR: u32 = 50;

/// The limits as they are given.
#[derive(Clone, Debug, Default)]
pub struct BudgetSpec {
    pub limits: Vec<String>,
    pub burst: Option<u64>,
    pub algorithm: Option<String>,
    /// Further options of a rule, as YAML.
    pub options: Option<String>,
}

/// The limits of all keys.
pub struct CallBudget {
    engine: Arc<EngineCore>,
    clock: BudgetClock,
    limits: Vec<Limit>,
    #[cfg(feature = "redis")]
    store: Option<CentralStore>,
}

/// The result of charging a call.
pub enum BudgetResult {
    /// It may be sent after the delay.
    Charged { delay: Duration, receipt: Option<Box<ChargeReceipt>> },
    /// It may be charged after this time at the earliest.
    Denied { retry_after: Duration },
    /// The limit admits nothing.
    Never,
}

impl BudgetSpec {
    /// The configuration that is equivalent to the limits.
    fn policy(&self) -> Result<PolicySnapshot, Problems> {
        let rules = match self.default_rules() {
            Some(rules) => rules,
            None => {
                let algorithm = quoted(self.algorithm.as_deref().unwrap_or("gcra"));
                vec![self.rule("budget", &self.limits, &algorithm, self.burst)]
            }
        };
        PolicySnapshot::from_yaml(&format!("rules: [{}]", rules.join(", ")))
    }

    /// Rules for limits without a burst or an algorithm: exact in every window, wherever the server's windows begin.
    /// `None` if one is chosen.
    fn default_rules(&self) -> Option<Vec<String>> {
        if self.burst.is_some() || self.algorithm.is_some() {
            return None;
        }
        // A limit that is not valid stays where it is, so that the error names its place.
        let rates: Result<Vec<Rate>, _> = self.limits.iter().map(|limit| limit.parse()).collect();
        let rates = rates.unwrap_or_default();
        let large: Vec<Rate> = rates.iter().filter(|rate| rate.count() > MAX_LOGGED).copied().collect();
        let logged: Vec<String> = match large.is_empty() {
            true => self.limits.clone(),
            false => rates.iter().filter(|rate| rate.count() <= MAX_LOGGED).map(Rate::to_string).collect(),
        };
        let mut rules = Vec::new();
        if !logged.is_empty() {
            rules.push(self.rule("budget", &logged, "sliding-log", None));
        }
        rules.extend(large.into_iter().map(|rate| self.large_rule(rate)));
        Some(rules)
    }

    /// A rule for a limit that is too large for a log of its calls.
    fn large_rule(&self, rate: Rate) -> String {
        let number = rate.count();
        let window = rate.period().secs();
        let id = format!("budget-{window}s");
        if window < MIN_STEPPED_WINDOW {
            // What the burst adds is taken from the rate.
            let burst = number / SPREAD_BURST_DIVISOR;
            return self.rule(&id, &[format!("{}/{window}s", number - burst)], "gcra", Some(burst));
        }
        // A call counts until its step leaves the window, which is up to a step too early: the window is a step longer.
        let step = window / WINDOW_STEPS;
        let step = step.max(1);
        let longer = (window.div_ceil(step) + 1) * step;
        let algorithm = format!("sliding-compact, resolution: {step}s");
        self.rule(&id, &[format!("{number}/{longer}s")], &algorithm, None)
    }

    fn rule(&self, id: &str, limits: &[String], algorithm: &str, burst: Option<u64>) -> String {
        let limits: Vec<String> = limits.iter().map(|limit| quoted(limit)).collect();
        let mut rule = format!(
            "{{id: {id}, key: api_key, on_store_error: local, limits: [{}], algorithm: {algorithm}",
            limits.join(", "),
        );
        if let Some(burst) = burst {
            write!(rule, ", burst: {burst}").expect("writing to a string cannot fail");
        }
        if let Some(options) = &self.options {
            write!(rule, ", {options}").expect("writing to a string cannot fail");
        }
        rule + "}"
    }
}

/// Text as a YAML string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl CallBudget {
    /// Counters in memory.
    pub fn new(spec: &BudgetSpec) -> Result<CallBudget, BuildError> {
        let policy = spec.policy().map_err(|problems| BuildError::from_problems(&problems))?;
        let limits: Vec<Limit> = policy
            .rules()
            .iter()
            .flat_map(|rule| rule.all_limits().map(|each| each.limit).collect::<Vec<_>>())
            .collect();
        let needed = limits.iter().map(EngineSetup::min_memory_for).max().unwrap_or_default();
        let setup = EngineSetup { memory_bytes: MEMORY_BYTES.max(needed), ..EngineSetup::default() };
        setup.check_memory().map_err(|error| BuildError::Memory(error.to_string()))?;
        let pace =
            if limits.iter().all(|limit| is_rolling(limit.shape())) { Pace::Slower } else { Pace::Exact };
        Ok(CallBudget {
            engine: Arc::new(EngineCore::with_setup(policy, setup)),
            clock: BudgetClock::new(pace),
            limits,
            #[cfg(feature = "redis")]
            store: None,
        })
    }

    /// Counters in a store. It decides by its own clock, so the pace is exact. It must be called inside a runtime.
    #[cfg(feature = "redis")]
    pub fn in_store_at(self, url: &str, deadline: Option<Duration>) -> Result<CallBudget, BuildError> {
        use tollgate_stores::counters::central::{CentralAddress, CentralAddressError};
        use tollgate_stores::counters::name::{NameHash, Naming};
        let refused = |why: String| BuildError::Store(why);
        let address = url.parse().map_err(|error: CentralAddressError| refused(error.to_string()))?;
        for limit in &self.limits {
            CentralAddress::check(&address, limit, DeniedHits::Free)
                .map_err(|why| refused(format!("the store cannot hold {limit}: {why}")))?;
        }
        let deadline = deadline.unwrap_or_else(|| address.default_deadline());
        let naming = Naming::Sensitive(NameHash::Unkeyed);
        let store = CentralStore::open(address, naming, deadline).map_err(refused)?;
        Ok(CallBudget { clock: BudgetClock::new(Pace::Exact), store: Some(store), ..self })
    }

    /// The rate of the fastest limit, for calls that are spaced evenly. A window has no burst, a server may have one: a
    /// quarter of its number is tried first, half of a burst that is given.
    pub fn spaced_rate(&self) -> Option<SpacedRate> {
        let limits = self.limits.iter().filter(|limit| is_rolling(limit.shape()) && limit.rate().count() > 0);
        let rates = limits.map(|limit| {
            let rate = limit.rate();
            let spacing = Duration::from_nanos(rate.period().nanos() / rate.count());
            let divisor = if is_bucket(limit.shape()) { 2 } else { 4 };
            let burst =
                u32::try_from(limit.capacity() / divisor).unwrap_or(u32::MAX).clamp(1, MAX_SPACED_BURST);
            SpacedRate { spacing: spacing + spacing / SLOWDOWN_DIVISOR, burst }
        });
        rates.min_by_key(|rate| rate.spacing)
    }

    /// Whether other processes may use the same counters.
    pub fn is_shared(&self) -> bool {
        #[cfg(feature = "redis")]
        return self.store.is_some();
        #[cfg(not(feature = "redis"))]
        false
    }

    /// Charges one call. A call that is cancelled meanwhile is not charged.
    pub async fn charge(&self, key: &str) -> BudgetResult {
        let now = self.clock.now();
        // A rule does not count a request whose key is empty.
        let key = format!("key:{key}");
        #[cfg(feature = "redis")]
        if let Some(store) = &self.store {
            return self.charge_central(store.clone(), key, now).await;
        }
        self.result(self.engine.check(&hit(&key), now))
    }

    /// In a task of its own: whether a charge that is under way was applied is known only at its end.
    #[cfg(feature = "redis")]
    async fn charge_central(&self, store: CentralStore, key: String, now: Time) -> BudgetResult {
        use tollgate::internal::engine::DecisionMode;
        let engine = Arc::clone(&self.engine);
        let (answer, decided) = tokio::sync::oneshot::channel::<EngineVerdict>();
        tokio::spawn(async move {
            let policy = engine.policy();
            let central = engine.decide_central(&policy, &hit(&key), now, DecisionMode::Check, &store).await;
            let unused = match answer.send(central.verdict) {
                Ok(()) => central.to_refund,
                Err(mut verdict) => verdict.take_receipt().or(central.to_refund),
            };
            if let Some(receipt) = unused {
                store.refund(receipt, now).await.ok();
            }
        });
        match decided.await {
            Ok(verdict) => self.result(verdict),
            Err(_) => BudgetResult::Denied { retry_after: Duration::from_millis(100) }, // the runtime ends
        }
    }

    /// Gives back the charge of a call that was not sent.
    pub fn refund(&self, receipt: ChargeReceipt) {
        let now = self.clock.now();
        #[cfg(feature = "redis")]
        if let Some(store) = self.store.clone() {
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { store.refund(receipt, now).await.ok() });
            }
            return;
        }
        self.engine.refund(receipt, now);
    }

    fn result(&self, mut verdict: EngineVerdict) -> BudgetResult {
        let real = |budget_time| self.clock.real(budget_time);
        match verdict.retry_after {
            _ if verdict.allowed => BudgetResult::Charged {
                delay: real(verdict.delay),
                receipt: verdict.take_receipt().map(Box::new),
            },
            Some(retry_after) => BudgetResult::Denied { retry_after: real(retry_after) },
            None => BudgetResult::Never,
        }
    }
}

fn hit(key: &str) -> Hit<'_> {
    Hit::on("", "", "").domain(DOMAIN).api_key(key)
}

fn is_bucket(shape: Shape) -> bool {
    matches!(shape, Shape::Gcra { .. } | Shape::TokenBucket { .. } | Shape::LeakyBucket { .. })
}

/// Whether a limit is the same at any time of the calendar.
fn is_rolling(shape: Shape) -> bool {
    match shape {
        Shape::Gcra { .. }
        | Shape::LeakyBucket { .. }
        | Shape::SlidingLog
        | Shape::SlidingCompact { .. }
        | Shape::FixedWindow { start: WindowStart::FirstHit } => true,
        Shape::TokenBucket { refill, .. } => refill == Refill::Continuous,
        Shape::FixedWindow { start: WindowStart::Aligned }
        | Shape::SlidingCounter
        | Shape::TieredWindow { .. }
        | Shape::Concurrency
        | Shape::Cell { .. } => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Exact,
    Slower,
}

/// The time by which limits in memory are counted.
struct BudgetClock {
    started: Instant,
    /// Unix nanoseconds when it started; only ever raised.
    anchor: AtomicU64,
    pace: Pace,
}

impl BudgetClock {
    fn new(pace: Pace) -> BudgetClock {
        BudgetClock { started: Instant::now(), anchor: AtomicU64::new(system_time().nanos()), pace }
    }

    fn now(&self) -> Time {
        self.now_at(system_time())
    }

    /// Windows that begin on the calendar follow the system's clock forward: it is ahead after the machine was suspended.
    fn now_at(&self, system: Time) -> Time {
        let elapsed = self.started.elapsed();
        let elapsed = match self.pace {
            Pace::Slower => elapsed - elapsed / SLOWDOWN_DIVISOR,
            Pace::Exact => {
                self.anchor.fetch_max((system - elapsed).nanos(), Ordering::Relaxed);
                elapsed
            }
        };
        Time::from_nanos(self.anchor.load(Ordering::Relaxed)) + elapsed
    }

    /// A duration of this clock in real time, rounded up.
    fn real(&self, duration: Duration) -> Duration {
        match self.pace {
            Pace::Exact => duration,
            Pace::Slower if duration.is_zero() => duration,
            Pace::Slower => duration + duration / (SLOWDOWN_DIVISOR - 1) + Duration::from_nanos(2),
        }
    }
}

fn system_time() -> Time {
    Time::EPOCH + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn windows_on_the_calendar_follow_the_system_forward_and_others_do_not() {
        let hour = Duration::from_secs(3600);
        let exact = BudgetClock::new(Pace::Exact);
        let start = exact.now();
        assert_eq!(exact.now_at(start + hour), start + hour, "the machine was suspended");
        assert_eq!(exact.now_at(start), start + hour, "it never goes back");
        tokio::time::advance(hour).await;
        assert_eq!(exact.now_at(start), start + hour * 2);
        let rolling = BudgetClock::new(Pace::Slower);
        let start = rolling.now();
        assert_eq!(rolling.now_at(start + hour), start);
    }
}
