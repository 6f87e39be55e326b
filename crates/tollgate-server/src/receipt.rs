//! Receipts for callers of the decision API: signed, and valid for one settlement.
//!
//! A receipt states what was charged, under which rules. The caller keeps it; its signature proves its contents, and it
//! is accepted only once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{self, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tollgate::Time;
use tollgate::internal::algorithm::{Grant, Quota};
use tollgate::internal::fingerprint::Fingerprint;
use tollgate::internal::limit::Shape;
use tollgate::internal::lock;
use tollgate::internal::rule::Rule;
use tollgate::internal::store::central::{CentralCounter, CounterId};
use tollgate::internal::store::{ChargeReceipt, CounterKey, KeyPart, ReceiptItem, Sensitivity};
use tollgate::internal::{EngineVerdict, PolicySnapshot};

/// A receipt expires after this; its charges then remain.
pub const MAX_AGE: Duration = Duration::from_secs(3_600);
/// Bound on remembered settlements; with more than these in an hour, further ones are refused.
const MAX_USED: usize = 1_000_000;
/// As long as the body of a settlement: the keys of several rules may be long.
const MAX_BYTES: usize = 256 << 10;

pub struct Receipts {
    key: hmac::Key,
    /// Distinguishes this process from earlier ones of the node, whose used receipts it does not know.
    process: u64,
    used: Mutex<UsedReceipts>,
}

/// Receipts used in this hour and in the one before.
#[derive(Default)]
struct UsedReceipts {
    current: HashSet<(u64, Id)>,
    previous: HashSet<(u64, Id)>,
    since: Time,
}

/// Unique within a process.
type Id = (u32, u64, u64);

#[derive(Serialize, Deserialize)]
struct WireReceipt {
    id: Id,
    /// Zero in receipts of earlier versions.
    #[serde(default)]
    process: u64,
    at: u64,
    charges: Vec<WireCharge>,
}

/// Rule, counter, fingerprint, cost of a unit, and the grant; the counter's name in a store; whether it is the node's
/// share of the limit.
#[derive(Serialize, Deserialize)]
struct WireCharge(
    String,
    String,
    u64,
    u64,
    (u64, u64, u64),
    Option<WireCounter>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")] bool,
);

/// Domain, the parts of the key, and the index of the owner among them.
type WireCounter = (Box<str>, Vec<WireKeyPart>, Option<usize>);

/// Name, value, and whether it is sensitive.
type WireKeyPart = (Box<str>, Box<str>, bool);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReceiptError {
    #[error("the receipt is not valid")]
    Forged,
    #[error(
        "the receipt was issued by another node, which has to settle it, or before this one was restarted"
    )]
    OtherProcess,
    #[error("the receipt is older than an hour: its charges stay")]
    Expired,
    #[error("the receipt was used already")]
    Used,
    #[error("too many receipts were used within an hour")]
    TooMany,
    #[error("the central store does not answer: try again")]
    StoreUnavailable,
}

/// The caller's report of the final cost or status.
#[derive(Clone, Copy, Default)]
pub struct Settlement {
    pub cost: Option<u64>,
    pub status: Option<u16>,
}

impl Receipts {
    /// Receipts of this process alone.
    pub fn with_random_key() -> Receipts {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        Receipts::new(key.expect("the system has random numbers"))
    }

    /// Receipts that all nodes with the same secret accept.
    pub fn with_key(secret: &[u8]) -> Receipts {
        Receipts::new(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn new(key: hmac::Key) -> Receipts {
        let process = rand::generate(&SystemRandom::new()).expect("the system has random numbers");
        Receipts { key, process: u64::from_le_bytes(process.expose()), used: Mutex::default() }
    }

    /// Those of a process with this number.
    #[cfg(feature = "testing")]
    pub fn of_process(self, process: u64) -> Receipts {
        Receipts { process, ..self }
    }

    /// The receipt of a verdict, if it charged anything.
    pub fn write(&self, verdict: &EngineVerdict) -> Option<String> {
        let (_, first) = verdict.charged().next().filter(|_| verdict.allowed)?;
        let charges = verdict.charged().map(|(limit, item)| {
            WireCharge(
                limit.rule.id.to_string(),
                limit.limit.counter_label(),
                item.fingerprint.to_bits(),
                item.unit_cost,
                (item.grant.at.nanos(), item.grant.cost, item.grant.mark),
                item.counter.as_ref().map(|counter| write_counter(&counter.id)),
                item.quota != Quota::new(&limit.limit),
            )
        });
        let id = (verdict.id.node, verdict.id.generation, verdict.id.sequence);
        let process = self.process;
        let written = WireReceipt { id, process, at: first.grant.at.nanos(), charges: charges.collect() };
        let mut bytes = serde_json::to_vec(&written).expect("numbers and texts are valid JSON");
        let signature = hmac::sign(&self.key, &bytes);
        bytes.extend_from_slice(signature.as_ref());
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Claims a receipt; returns the charges to refund or to correct.
    pub fn settle(
        &self,
        text: &str,
        settlement: Settlement,
        policy: &PolicySnapshot,
        now: Time,
    ) -> Result<Vec<(ChargeReceipt, u64)>, ReceiptError> {
        let written = self.read(text).ok_or(ReceiptError::Forged)?;
        if written.process != self.process && !written.is_central() {
            return Err(ReceiptError::OtherProcess);
        }
        if now.since(Time::from_nanos(written.at)) >= MAX_AGE {
            return Err(ReceiptError::Expired);
        }
        self.mark_used((written.process, written.id), now)?;
        Ok(written.charges.into_iter().filter_map(|charge| charge.settlement(settlement, policy)).collect())
    }

    /// An id that is unique across all nodes, if any node may settle the receipt.
    pub fn shared_id(&self, text: &str) -> Option<String> {
        let written = self.read(text).filter(WireReceipt::is_central)?;
        let (node, generation, sequence) = written.id;
        Some(format!("{node}-{generation}-{sequence}-{}", written.at))
    }

    fn read(&self, text: &str) -> Option<WireReceipt> {
        let bytes = URL_SAFE_NO_PAD.decode(Some(text).filter(|text| text.len() <= MAX_BYTES)?).ok()?;
        let (written, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE_BYTES)?)?;
        hmac::verify(&self.key, written, signature).ok()?;
        serde_json::from_slice(written).ok()
    }

    fn mark_used(&self, id: (u64, Id), now: Time) -> Result<(), ReceiptError> {
        let mut used = lock(&self.used);
        if now.since(used.since) >= MAX_AGE {
            used.previous = std::mem::take(&mut used.current);
            used.since = now;
        }
        if used.current.contains(&id) || used.previous.contains(&id) {
            return Err(ReceiptError::Used);
        }
        if used.current.len() >= MAX_USED {
            return Err(ReceiptError::TooMany);
        }
        used.current.insert(id);
        Ok(())
    }
}

const SIGNATURE_BYTES: usize = 32;

impl WireReceipt {
    /// Whether any node can settle it: all its counters are in the central store.
    fn is_central(&self) -> bool {
        self.charges.iter().all(|WireCharge(.., elsewhere, _)| elsewhere.is_some())
    }
}

impl WireCharge {
    /// The charge to correct, and its real cost; a rule that has changed since keeps its charge.
    fn settlement(self, settlement: Settlement, policy: &PolicySnapshot) -> Option<(ChargeReceipt, u64)> {
        let WireCharge(id, counter, fingerprint, unit_cost, (at, cost, mark), elsewhere, is_share) = self;
        let rule = policy.rule(&id)?;
        let limit = rule.all_limits().find(|limit| limit.limit.counter_label() == counter)?;
        let grant = Grant { at: Time::from_nanos(at), cost, mark };
        let counter = |written| CentralCounter { id: read_counter(written, &id), limit: limit.limit };
        let counter = elsewhere.map(|written| Arc::new(counter(written)));
        let real_cost = real_cost(rule, limit.limit.shape(), settlement)?;
        let nodes = if is_share { policy.settings().store.nodes } else { 1 };
        let quota = Quota::new(&limit.limit.node_share(nodes));
        let fingerprint = Fingerprint::from_bits(fingerprint);
        let item = ReceiptItem { fingerprint, quota, unit_cost, grant, counter };
        Some((ChargeReceipt::from_items([item])?, real_cost))
    }
}

fn write_counter(CounterId { domain, key, .. }: &CounterId) -> WireCounter {
    let part = |part: &KeyPart| (part.name.clone(), part.value.clone(), part.is_sensitive());
    (domain.clone(), key.parts().iter().map(part).collect(), key.owner_index())
}

fn read_counter((domain, parts, owner): WireCounter, rule: &str) -> CounterId {
    let part = |(name, value, is_sensitive)| {
        let sensitivity = if is_sensitive { Sensitivity::Sensitive } else { Sensitivity::Public };
        KeyPart { name, value, sensitivity }
    };
    let parts = parts.into_iter().map(part).collect();
    let key = match owner {
        Some(owner) => CounterKey::owned(parts, owner),
        None => CounterKey::shared(parts),
    };
    CounterId { domain, rule: rule.into(), key }
}

/// `None` if the charge remains unchanged.
fn real_cost(rule: &Rule, shape: Shape, settlement: Settlement) -> Option<u64> {
    let counts = settlement.status.is_none_or(|status| rule.count_when.counts(status));
    if shape == Shape::Concurrency || !counts {
        return Some(0);
    }
    settlement.cost
}

/// Whether the caller is expected to settle the receipt.
pub fn is_expected(verdict: &EngineVerdict) -> bool {
    verdict.allowed
        && verdict
            .limits()
            .iter()
            .any(|limit| limit.rule.settles_later() || limit.limit.shape() == Shape::Concurrency)
}

#[cfg(test)]
mod tests {
    use tollgate::Hit;
    use tollgate::internal::EngineCore;
    use tollgate::internal::document::{self, MapReader, Problems};
    use tollgate::internal::engine::DecisionMode;
    use tollgate::internal::policy::{PolicyParts, StoreSettings};
    use tollgate::internal::rule::OnStoreError;
    use tollgate::internal::store::Charge;
    use tollgate::internal::store::central::{CentralCounterStore, CentralOutcome, LimitResult, StoreError};

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const BACK: Settlement = Settlement { cost: Some(0), status: None };

    fn engine() -> EngineCore {
        EngineCore::new(PolicySnapshot::from_yaml("rules: [{ id: a, limit: 5/m }]").unwrap())
    }

    fn settle(
        receipts: &Receipts,
        engine: &EngineCore,
        text: &str,
        now: Time,
    ) -> Result<usize, ReceiptError> {
        let settled = receipts.settle(text, BACK, &engine.policy(), now)?;
        let count = settled.len();
        settled.into_iter().for_each(|(receipt, cost)| engine.settle(receipt, cost, now));
        Ok(count)
    }

    #[test]
    fn a_receipt_is_good_once_and_for_an_hour() {
        let engine = engine();
        let receipts = Receipts::with_random_key();
        let verdict = engine.check(&Hit::on("GET", "h", "/").cost(5), NOW);
        let text = receipts.write(&verdict).unwrap();
        assert_eq!(settle(&receipts, &engine, &text, NOW), Ok(1));
        assert_eq!(settle(&receipts, &engine, &text, NOW), Err(ReceiptError::Used));
        assert!(engine.check(&Hit::on("GET", "h", "/").cost(5), NOW).allowed, "all of it was given back");
        let late = NOW + MAX_AGE;
        let verdict = engine.check(&Hit::on("GET", "h", "/"), NOW + Duration::from_secs(60));
        let text = receipts.write(&verdict).unwrap();
        assert_eq!(settle(&receipts, &engine, &text, late + MAX_AGE), Err(ReceiptError::Expired));
    }

    /// A process with the secret of the one before it settled what that one had settled already, and took its own
    /// receipts for those of the other: both count from one.
    #[test]
    fn a_receipt_of_an_earlier_process_is_not_settled_again() {
        let receipts = [(); 2].map(|()| Receipts::with_key(b"secret"));
        let [former, latter] = &receipts;
        let [before, after] = [(); 2].map(|()| engine());
        let hit = Hit::on("GET", "h", "/").cost(5);
        let text = former.write(&before.check(&hit, NOW)).unwrap();
        assert_eq!(settle(former, &before, &text, NOW), Ok(1));
        let own = latter.write(&after.check(&hit, NOW)).unwrap();
        assert_eq!(settle(latter, &after, &text, NOW), Err(ReceiptError::OtherProcess));
        assert_eq!(settle(latter, &after, &own, NOW), Ok(1));
    }

    /// A store that is unreachable.
    struct Unreachable;

    impl CentralCounterStore for Unreachable {
        async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
            self.peek(charges, now).await
        }

        async fn peek(&self, charges: &[Charge], _now: Time) -> CentralOutcome {
            let failed = LimitResult::Failed(StoreError::Deadline { server: "a".to_owned() });
            CentralOutcome { admitted: true, limits: vec![failed; charges.len()] }
        }

        async fn reset(&self, _: &CentralCounter, _: Time) -> Result<bool, StoreError> {
            Ok(false)
        }
    }

    /// A quarter of 8/h is charged and an eighth of it refunded: a token of the whole limit is a quarter of the
    /// share's.
    #[tokio::test]
    async fn a_nodes_share_is_given_back_as_it_was_charged() {
        let root = document::read("rules: [{ id: a, limit: 8/h }]").unwrap();
        let mut parts = PolicyParts::default();
        let mut problems = Problems::new();
        parts.read(&mut MapReader::new(&root, "", &mut problems).unwrap());
        parts.settings.store = StoreSettings { on_error: OnStoreError::Local, nodes: 4, deny_cache: true };
        let engine = EngineCore::new(PolicySnapshot::new(parts).unwrap());
        let receipts = Receipts::with_random_key();
        let hit = Hit::on("GET", "h", "/").cost(2);
        for _ in 0..3 {
            let policy = engine.policy();
            let decided = engine.decide_central(&policy, &hit, NOW, DecisionMode::Check, &Unreachable);
            let verdict = decided.await.verdict;
            assert!(verdict.allowed, "the share is 2 an hour");
            let text = receipts.write(&verdict).unwrap();
            assert_eq!(settle(&receipts, &engine, &text, NOW), Ok(1));
        }
    }

    #[test]
    fn a_modified_receipt_is_rejected() {
        let engine = engine();
        let receipts = Receipts::with_random_key();
        let verdict = engine.check(&Hit::on("GET", "h", "/"), NOW);
        let text = receipts.write(&verdict).unwrap();
        for at in 0..text.len() {
            let mut touched = text.clone().into_bytes();
            touched[at] = if touched[at] == b'A' { b'B' } else { b'A' };
            let touched = String::from_utf8(touched).unwrap();
            assert_eq!(settle(&receipts, &engine, &touched, NOW), Err(ReceiptError::Forged), "{at}");
        }
        assert_eq!(settle(&Receipts::with_random_key(), &engine, &text, NOW), Err(ReceiptError::Forged));
        for nonsense in ["", "x", &"A".repeat(1 << 20)] {
            assert_eq!(settle(&receipts, &engine, nonsense, NOW), Err(ReceiptError::Forged));
        }
    }

    #[test]
    fn nodes_with_one_secret_verify_each_others_receipts() {
        let engine = engine();
        let verdict = engine.check(&Hit::on("GET", "h", "/"), NOW);
        let text = Receipts::with_key(b"secret").write(&verdict).unwrap();
        let read = Receipts::with_key(b"secret").read(&text);
        assert!(read.is_some() && Receipts::with_key(b"other").read(&text).is_none());
    }
}
