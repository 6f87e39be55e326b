//! Saved states: contents that anything may have damaged, under checksums that fit.

use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::engine::EngineSetup;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::identity::Key;
use tollgate::internal::testing::{chunks, old_snapshot, state_log};
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Time};

use super::{MAX_BYTES, Target};

const NOW: Time = Time::from_secs(1_800_000_000);
const RULES: &str = "rules:\n- { id: a, key: user, limit: 3/h, ban: { key: [user], after: 2, within: 1h, for: 1h, max: 24h }, track: true }\n\
    - { id: b, key: user, limit: 20/h, algorithm: sliding-log }\n- { id: c, key: user, limit: 9/m, algorithm: tiered-window }\n";
/// A snapshot of the format before state logs.
const OLD: &[u8] = include_bytes!("../../../crates/tollgate/tests/fixtures/snapshot-v5");
const CHECKSUM_BYTES: usize = 8;

pub(super) const SNAPSHOT: Target = Target {
    name: "snapshot",
    run: |input| {
        restore(input);
        for bytes in [state_log(&setup().secret, input), old_snapshot(input)] {
            let Some(engine) = restore(&bytes) else { continue };
            let hit = Hit::by("ann");
            engine.check(&hit, NOW);
            engine.check(&hit, NOW + std::time::Duration::from_secs(3_600));
            let mut saved = Vec::new();
            engine.save(&mut saved, RULES, NOW).expect("a vector takes all that is written");
            assert!(restore(&saved).is_some(), "what was restored cannot be saved and restored");
        }
    },
    words: &["TOLLGATE", "ip:1.2.3.4", "user:ann", "manual", "automatic", "\0\0\0\0\0\0\0\u{1}"],
    seeds,
    max_bytes: 4 * MAX_BYTES,
};

fn policy() -> PolicySnapshot {
    PolicySnapshot::from_yaml(RULES).expect("valid rules")
}

fn setup() -> EngineSetup {
    EngineSetup { memory_bytes: 1 << 20, secret: Secret::from_bytes([7; 16]), ..EngineSetup::default() }
}

fn restore(bytes: &[u8]) -> Option<EngineCore> {
    EngineCore::restore(policy(), setup(), bytes, |_| None, NOW).ok().map(|(engine, _)| engine)
}

/// The contents of real states.
fn seeds() -> Vec<Vec<u8>> {
    let engine = EngineCore::with_setup(policy(), setup());
    for hit in 0..12 {
        engine.check(&Hit::by(if hit % 3 == 0 { "bob" } else { "ann" }), NOW);
    }
    let ban = Ban { until: Time::MAX, reason: "r".into(), source: BanSource::Manual, strikes: 1 };
    engine.ban(Key::parse("ip:10.0.0.1").expect("a key"), ban, NOW);
    let mut seeds = chunks(&engine, NOW);
    seeds.push(OLD[..OLD.len() - CHECKSUM_BYTES].to_vec());
    seeds
}
