//! Decisions a second through the Redis store, with many callers at once. `bench/redis` runs it beside
//! redis-benchmark with the same script.
//!
//! Usage: redis_throughput URL CALLERS DECISIONS RULES KEYS, or redis_throughput --call RULES, which prints the words of
//! the same call for redis-benchmark.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::Clock;
use tollgate::internal::limit::Limit;
use tollgate::internal::store::{Charge, CounterKey, KeyPart, Sensitivity};
use tollgate_stores::counters::redis::{RedisSetup, RedisStore, args_of_call};
use tollgate_stores::counters::{CentralCounter, CounterId};

/// What redis-benchmark writes instead of this is a number of twelve digits.
const RANDOM: &str = "__rand_int__";

fn charges(user: &str, rules: usize) -> Vec<Charge> {
    let user = KeyPart { name: "user".into(), value: user.into(), sensitivity: Sensitivity::Public };
    let limit = Limit::per("1000/d".parse().expect("a rate"));
    let charge = |n| {
        let id = CounterId {
            domain: "default".into(),
            rule: format!("rule-{n}").into(),
            key: CounterKey::owned(vec![user.clone()], 0),
        };
        Charge::central(CentralCounter { id, limit })
    };
    (0..rules).map(charge).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--call", rules] => {
            let words = args_of_call(&charges(RANDOM, rules.parse()?));
            println_all(&words);
            Ok(())
        }
        [url, callers, decisions, rules, keys] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(measure(
                url,
                callers.parse()?,
                decisions.parse()?,
                rules.parse()?,
                keys.parse()?,
            ))
        }
        _ => Err("usage: redis_throughput URL CALLERS DECISIONS RULES KEYS".into()),
    }
}

#[allow(clippy::print_stdout)] // it is what it is for
fn println_all(words: &[String]) {
    words.iter().for_each(|word| println!("{word}"));
}

async fn measure(
    url: &str,
    callers: u64,
    decisions: u64,
    rules: usize,
    keys: u64,
) -> Result<(), Box<dyn Error>> {
    let setup = RedisSetup { deadline: Duration::from_secs(2), ..RedisSetup::new(url.parse()?) };
    let store = RedisStore::open(setup)?;
    store.ready(Duration::from_secs(5)).await?;
    let left = Arc::new(AtomicU64::new(decisions));
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let store = store.clone();
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                let clock = Clock::new();
                let mut failed = 0u64;
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let charges = charges(&format!("{:012}", fastrand::u64(..keys)), rules);
                    let outcome = store.charge(&charges, clock.now()).await;
                    failed += u64::from(outcome.limits.iter().any(|limit| limit.error().is_some()));
                }
                failed
            })
        })
        .collect();
    let mut failed = 0;
    for task in tasks {
        failed += task.await?;
    }
    let rate = decisions as f64 / start.elapsed().as_secs_f64();
    println_all(&[format!("{rate:.0} {failed}")]);
    Ok(())
}
