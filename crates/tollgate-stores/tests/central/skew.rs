//! Two nodes whose clocks differ: the slack that the docs state, measured.

use std::time::Duration;

use tollgate::Shape;

use super::{Store, limit, now, own};

const SKEW: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(500);
const RATE: u64 = 100;
const BURST: u64 = 10;

/// Again and again two nodes ask for all they can get, the one whose clock is ahead last. In every interval at
/// most what the limit gives back within the difference is too much.
pub async fn check(store: &impl Store) {
    let charge = own("skew", "user:1", limit("100/s", Shape::Gcra { burst: Some(BURST) }));
    let (start, mut admitted) = (now(), Vec::new());
    for n in 0..4 * 40 {
        let at = start + PAUSE * (n / 40);
        let told = if n % 40 < 20 { at } else { at + SKEW };
        let outcome = store.charge(std::slice::from_ref(&charge), told).await;
        assert!(outcome.parts[0].is_ok(), "{:?}", outcome.parts[0]);
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
