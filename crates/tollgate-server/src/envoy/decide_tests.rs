//! Requests of several descriptors beside refunds by other requests.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::Hit;
use tollgate::internal::engine::DecisionMode;

use super::decide;
use super::request::{Descriptor, Entry, RateLimitRequest};
use crate::assemble;
use crate::config::Config;

const ROUNDS: u64 = 10_000;

fn descriptor(key: &'static str) -> Descriptor<'static> {
    let entries = [Entry { key: key.into(), value: "x".into() }];
    Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() }
}

/// A descriptor that is denied when it is peeked may be allowed when it is decided, because another request has given
/// back its charge meanwhile. Then the other descriptors are charged, too.
#[test]
fn every_allowed_request_is_charged_by_all_its_descriptors() {
    let rules = "rules:
  - { id: wide, key: 'attr:wide', limit: 1000000/d, algorithm: fixed-window }
  - { id: narrow, key: 'attr:narrow', limit: 1/d, algorithm: fixed-window }
";
    let mut config = Config::parse(rules, Path::new("")).expect("a valid configuration");
    let gate = assemble::gate(&mut config, String::new(), None).expect("a gate");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let is_done = AtomicBool::new(false);
    let allowed = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Takes the only place of the narrow limit and gives it back, again and again.
            let snapshot = gate.snapshot();
            while !is_done.load(Ordering::Relaxed) {
                let hit = Hit::on("", "", "").domain("shop").attribute("narrow", "x");
                let mut verdict = gate.engine.decide(&snapshot.policy, &hit, gate.now(), DecisionMode::Check);
                if let Some(receipt) = verdict.take_receipt() {
                    gate.refund(receipt);
                }
            }
        });
        let request = RateLimitRequest {
            domain: "shop".into(),
            descriptors: [descriptor("wide"), descriptor("narrow")].into_iter().collect(),
            hits_addend: 0,
        };
        let back = RateLimitRequest {
            descriptors: [Descriptor { is_refund: true, ..descriptor("narrow") }].into_iter().collect(),
            ..request.clone()
        };
        let mut allowed = 0;
        for _ in 0..ROUNDS {
            let answer = runtime.block_on(decide(&gate, &request, None)).expect("a valid request");
            if !answer.is_over_limit() {
                allowed += 1;
                runtime.block_on(decide(&gate, &back, None)).expect("a valid request");
            }
        }
        is_done.store(true, Ordering::Relaxed);
        allowed
    });
    let look = Descriptor { hits_addend: Some(0), ..descriptor("wide") };
    let look =
        RateLimitRequest { domain: "shop".into(), descriptors: [look].into_iter().collect(), hits_addend: 0 };
    let answer = runtime.block_on(decide(&gate, &look, None)).expect("a valid request");
    let used = 1_000_000 - u64::from(answer.statuses[0].remaining);
    assert_eq!(used, allowed);
}
