//! Two nodes whose clocks differ: the slack that the docs state, measured.

use std::time::Duration;

use tollgate::internal::Shape;
use tollgate::internal::algorithm::{Admission, MAX_SKEW};
use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};

use super::{Store, limit, now, own};

const SKEW: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(500);
const RATE: u64 = 100;
const BURST: u64 = 10;

/// Two nodes repeatedly charge until they are denied, the one with the fast clock last. In every interval at
/// most what the limit gives back within the difference is too much.
pub async fn check(store: &impl Store) {
    let charge = own("skew", "user:1", limit("100/s", Shape::Gcra { burst: Some(BURST) }));
    let start = now();
    let mut admitted = Vec::new();
    for n in 0..4 * 40 {
        let at = start + PAUSE * (n / 40);
        let claimed_time = if n % 40 < 20 { at } else { at + SKEW };
        let outcome = store.charge(std::slice::from_ref(&charge), claimed_time).await;
        assert!(outcome.limits[0].outcome().is_some(), "{:?}", outcome.limits[0]);
        if outcome.admitted {
            admitted.push(at);
        }
    }
    let back = |span: Duration| RATE * u64::try_from(span.as_nanos()).expect("a short span") / 1_000_000_000;
    let excess = admitted.iter().enumerate().flat_map(|(n, first)| {
        let upto = admitted[n..].iter().enumerate();
        upto.map(|(before, last)| (before as u64 + 1).saturating_sub(BURST + back(last.since(*first))))
    });
    let excess = excess.max().unwrap_or(0);
    eprintln!("clocks that differ by {SKEW:?} let {excess} of {RATE}/s too many through");
    assert!(excess <= back(SKEW), "{excess} too many");
}

/// A node whose clock was a year ahead denied its keys to all others for a year.
pub async fn check_far_ahead(store: &impl Store) {
    const PERIOD: Duration = Duration::from_secs(60);
    let shapes = [
        Shape::GCRA,
        Shape::TokenBucket { burst: Some(5), refill: Refill::Tick(Duration::from_secs(1)) },
        Shape::LeakyBucket { burst: Some(5), release: Release::AtOnce },
        Shape::FixedWindow { start: WindowStart::Aligned },
        Shape::FixedWindow { start: WindowStart::FirstHit },
        Shape::SlidingLog,
        Shape::SlidingCompact { resolution: Duration::from_secs(1) },
        Shape::SlidingCounter,
        Shape::TieredWindow { levels: Levels::SMH },
        Shape::Concurrency,
    ];
    for (n, shape) in shapes.into_iter().enumerate() {
        let rule = format!("ahead{n}");
        let charges = [own(&rule, "user:1", limit("5/m", shape))];
        let here = now();
        for _ in 0..6 {
            store.charge(&charges, here + Duration::from_secs(365 * 86_400)).await;
        }
        let outcome = store.charge(&charges, here).await;
        let part = outcome.limits[0].outcome().unwrap_or_else(|| panic!("{shape:?}: {outcome:?}"));
        let Admission::Deny { retry_after } = part.decision.admission else { continue };
        assert!(retry_after <= 2 * PERIOD + MAX_SKEW, "{shape:?}: {retry_after:?}");
        // The denial has clamped the state: time passes for it.
        assert!(store.charge(&charges, here + retry_after).await.admitted, "{shape:?}");
    }
}

/// A bucket that was used under a larger limit is not taken for one of a clock that was ahead.
pub async fn check_lowered(store: &impl Store) {
    let under = |rate| [own("lowered", "user:1", limit(rate, Shape::GCRA))];
    let here = now();
    for _ in 0..100 {
        store.charge(&under("100/h"), here).await;
    }
    for _ in 0..3 {
        assert!(!store.charge(&under("1/h"), here).await.admitted);
    }
    assert!(!store.charge(&under("100/h"), here).await.admitted, "all hundred are used");
}
