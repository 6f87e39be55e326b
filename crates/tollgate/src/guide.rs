//! A guide to the library: each task with an example. Every example runs as a test.
//!
//! | To | See |
//! |---|---|
//! | limit keys by one rate | [a key, several at once, a cost](#one-limit) |
//! | wait instead of being denied | [waiting for a turn](#waiting-for-a-turn) |
//! | decide requests by a file of rules | [rules](#rules) |
//! | ban clients, and change rules while requests are decided | [bans and new rules](#bans-and-new-rules) |
//! | correct what was charged | [giving back](#giving-back) |
//! | continue after a restart | [save and restore](#save-and-restore) |
//! | know how much memory it takes | [memory](#memory) |
//! | choose how hits are counted | [algorithms](#algorithms) |
//! | test | [time in tests](#time-in-tests) |
//! | limit a web service, or calls to others | [other crates](#other-crates) |
//!
//! # One limit
//!
//! A [`Limiter`](crate::Limiter) counts any number of keys: strings, bytes and numbers. A denial costs nothing, and says
//! when the same cost would be allowed.
//!
//! ```
//! use tollgate::{Admission, Limiter};
//!
//! let limiter = Limiter::new("10/h")?;
//! assert!(limiter.check("user:42").is_allowed());
//! assert_eq!(limiter.peek("user:42").left, 9); // as `check`, but nothing is charged
//! assert!(limiter.check_n("user:42", 9).is_allowed()); // all nine, or none
//! let denied = limiter.check("user:42");
//! assert!(!denied.is_allowed() && denied.retry_after().is_some());
//! assert_eq!(limiter.check_n("user:7", 11).admission, Admission::Never); // more than the limit
//!
//! assert!(limiter.peek_n("user:7", 10).is_allowed());
//! assert!(limiter.reset("user:42"));
//! assert_eq!(limiter.peek("user:42").left, 10);
//! # Ok::<(), tollgate::LimiterError>(())
//! ```
//!
//! Several keys in one call are faster than one call for each: their cache lines are fetched together.
//!
//! ```
//! use tollgate::Limiter;
//!
//! let limiter = Limiter::new("1/h")?;
//! let mut allowed = Vec::new();
//! limiter.check_batch(&["ann", "bob", "ann"], |decision| allowed.push(decision.is_allowed()));
//! assert_eq!(allowed, [true, true, false]);
//! # Ok::<(), tollgate::LimiterError>(())
//! ```
//!
//! # Waiting for a turn
//!
//! [`until_ready`](crate::Limiter::until_ready) waits until a key is allowed and charges it. Callers of a key are served in
//! the order of their arrival; only the first in a queue has a timer, so 10,000 waiting callers cost no polling. Dropping
//! the future gives up the place and charges nothing. The library has no runtime: `sleep` is that of yours.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tollgate::{Limiter, WaitError};
//!
//! let limiter = Limiter::builder().build("{limit: 20/s, burst: 1}")?;
//! limiter.until_ready("api.example.com", tokio::time::sleep).await?;
//! limiter.until_ready("api.example.com", tokio::time::sleep).await?; // 50 ms later
//!
//! // With a deadline: it fails at once, because the turn is known to be later.
//! let soon = Duration::from_micros(1);
//! let late = limiter.until_ready_within("api.example.com", soon, tokio::time::sleep).await;
//! assert_eq!(late, Err(WaitError::TimedOut));
//!
//! // For a cost above one.
//! let bulk = Limiter::new("100/s")?;
//! bulk.until_ready_n("api.example.com", 60, tokio::time::sleep).await?;
//! # Ok(())
//! # }
//! ```
//!
//! An [`Engine`](crate::Engine) has no `until_ready`. A hit may be charged under several keys, which new rules change while
//! it waits, and a denied attempt is not without effect: it may count (`count_denied`), lead to a ban, and appear in
//! statistics. Wait for [`retry_after`](crate::Verdict::retry_after) and check again, hold requests in the layer
//! (`on_exceed: hold`), or wait on a limiter for the one limit that matters.
//!
//! # Rules
//!
//! An [`Engine`](crate::Engine) reads the server's configuration file. [`Policy::from_yaml`](crate::Policy::from_yaml) says
//! which settings are followed, and which are rejected because the server would decide differently. Variables are passed
//! explicitly:
//!
//! ```
//! use tollgate::{Engine, Hit, Policy};
//!
//! let file = "
//! identity: {user: 'header:x-account'}
//! rules:
//!   - {id: login, match: POST /login, key: [ip, email], limits: ['${ATTEMPTS}/m', 20/h], algorithm: sliding-log}
//!   - {id: api, match: /api/**, key: user, limit: 100/m, burst: 20}
//! allow: [ip:10.0.0.0/8]
//! ";
//! let policy = Policy::with_variables(file, |name| (name == "ATTEMPTS").then(|| "5".to_owned()))?;
//! let engine = Engine::builder().memory_bytes(64 << 20).build(policy)?;
//!
//! let attempt = Hit::on("POST", "example.com", "/login").ip([203, 0, 113, 9].into()).email("ann@example.com");
//! assert!(engine.check(&attempt).is_allowed());
//! assert_eq!(engine.peek(&attempt).reported().map(|limit| limit.remaining()), Some(4));
//!
//! let verdicts = engine.check_batch(&[attempt.clone(), Hit::by("bob")]);
//! assert_eq!(verdicts.len(), 2);
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Bans and new rules
//!
//! A rule may ban what it denies too often; a key may be banned by name. New rules are applied while hits are decided: each
//! hit sees the old rules or the new ones, and keys keep what they have used under rules with the same id.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Engine, Hit, Policy, Reason};
//!
//! let engine = Engine::from_yaml(
//!     "rules: [{id: login, key: ip, limit: 1/h, ban: {after: 2, within: 10m, for: 1h}}]",
//! )?;
//! let hit = Hit::on("POST", "", "/login").ip([203, 0, 113, 9].into());
//! let reasons: Vec<_> = (0..4).map(|_| engine.check(&hit).reason()).collect();
//! assert_eq!(reasons, [Reason::Ok, Reason::Limit, Reason::Limit, Reason::Ban]);
//! assert_eq!(engine.unban("ip:203.0.113.9"), Ok(true));
//! engine.ban("ip:198.51.100.0/24", Duration::from_secs(3600), "scraping").expect("a valid key");
//!
//! engine.apply(Policy::from_yaml("rules: [{id: login, key: ip, limit: 3/h}]")?)?;
//! assert!(engine.check(&hit).is_allowed()); // one of three was used
//! engine.reset("login", "ip:203.0.113.9").expect("the rule counts by such a key");
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Giving back
//!
//! A verdict that charged something has a [receipt](crate::Verdict::into_receipt). With it, a charge is refunded, or
//! settled once the real cost is known:
//!
//! ```
//! use tollgate::{Engine, Hit};
//!
//! let engine = Engine::from_yaml("rules: [{id: tokens, key: user, limit: 1000/d}]")?;
//! let estimate = Hit::by("ann").cost(800);
//! let receipt = engine.check(&estimate).into_receipt().expect("it was charged");
//! engine.settle(receipt, 150); // what it took in the end
//! assert!(engine.check(&Hit::by("ann").cost(850)).is_allowed());
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Save and restore
//!
//! [`save`](crate::Engine::save) writes counters, bans and tracked keys as bytes; the library itself opens no file. A
//! restored engine continues from them, and the time in between counts as elapsed.
//!
//! ```
//! use tollgate::{Engine, Hit, Policy};
//!
//! let rules = "rules: [{id: all, key: user, limit: 1/d}]";
//! let engine = Engine::from_yaml(rules)?;
//! assert!(engine.check(&Hit::by("ann")).is_allowed());
//! let mut saved = Vec::new();
//! engine.save(&mut saved, rules).expect("a vector takes it");
//!
//! let restored = Engine::builder().restore(Policy::from_yaml(rules)?, &saved)?;
//! assert!(!restored.check(&Hit::by("ann")).is_allowed());
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Memory
//!
//! Memory has a bound, a gibibyte unless it is set. It is reserved at once, and committed as keys arrive; idle keys need no
//! sweep. When it is full, the key that has used the smallest part of its limit gives way, and a key at its limit is not
//! evicted by others. What new keys get that find no room is [`MemoryFull`](crate::MemoryFull): by default they share
//! counters with each other.
//!
//! ```
//! use tollgate::{Engine, Hit, Limiter, MemoryFull, Policy};
//!
//! let policy = Policy::from_yaml("rules: [{id: all, key: user, limit: 5/m}]")?;
//! let engine = Engine::builder().memory_bytes(16 << 20).memory_full(MemoryFull::Closed).build(policy)?;
//! engine.check(&Hit::by("ann"));
//! let usage = engine.memory_usage();
//! assert!(usage.keys == 1 && usage.bytes <= usage.cap_bytes);
//!
//! let limiter = Limiter::builder().memory_bytes(16 << 20).build("5/m").expect("it fits");
//! assert_eq!(limiter.memory_usage().evicted, 0);
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Algorithms
//!
//! | You want | Write |
//! |---|---|
//! | a steady rate with room for bursts | nothing, or `burst: 20`: GCRA is the default |
//! | a quota that resets on the clock or the calendar | `algorithm: fixed-window`, or `token-bucket` with `refill: calendar` |
//! | never more than N in any window | `sliding-log`; for a large N `sliding-compact` or `tiered-window` |
//! | a large window for many keys, where an estimate is enough | `sliding-counter` |
//! | requests that are held and released at the rate | `leaky-bucket` |
//! | a bound on requests that run at the same time | `concurrency`; a hit is refunded when it ends |
//!
//! ```
//! use tollgate::{Clock, Limiter, Time};
//! use std::time::Duration;
//!
//! // Two in any hour: at the edge of an hour, a fixed window would allow two more.
//! let clock = || Clock::manual(Time::from_secs(3_590));
//! let exact = Limiter::builder().clock(clock()).build("{limit: 2/h, algorithm: sliding-log}")?;
//! let window = Limiter::builder().clock(clock()).build("{limit: 2/h, algorithm: fixed-window}")?;
//! for limiter in [&exact, &window] {
//!     assert!(limiter.check_n("ann", 2).is_allowed());
//!     limiter.clock().advance(Duration::from_secs(20));
//! }
//! assert!(!exact.check("ann").is_allowed());
//! assert!(window.check("ann").is_allowed());
//! # Ok::<(), tollgate::LimiterError>(())
//! ```
//!
//! `docs/choose-an-algorithm.md` of the repository has plots, `docs/algorithms.md` definitions, options and costs.
//!
//! # Time in tests
//!
//! A [manual clock](crate::Clock::manual) moves when it is advanced; both builders take one. Methods of a limiter that end
//! in `_at` are given the time instead. While the time of a runtime is paused, let the clock follow it: the example is at
//! [`until_ready`](crate::Limiter::until_ready).
//!
//! # Feature flags
//!
//! None is needed, and none adds a setting: `http` and `tickets` are for the other crates of the project, `testing` for its
//! fuzz targets. They are not part of the public API.
//!
//! # Other crates
//!
//! | Crate | For |
//! |---|---|
//! | `tollgate-tower` | a layer for axum, hyper and tonic: 429 as a response, headers, counters in Redis, Memcached or Cassandra |
//! | `tollgate-client` | the other side: your own calls stay under the limits of an API, with budgets that processes share in Redis |
//! | `tollgate-server` | the server and the reverse proxy, for programs in any language |
