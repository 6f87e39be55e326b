//! Central counters: verdicts when some of them are not available.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate::internal::Limit;
use tollgate::internal::algorithm::{Algorithm, Grant, Quota, QuotaState};
use tollgate::internal::engine::{CentralVerdict, DecisionMode, InspectMode, KeyReport};
use tollgate::internal::policy::StoreSettings;
use tollgate::internal::rule::OnStoreError;
use tollgate::internal::store::central::{
    CentralCounter, CentralCounterStore, CentralOutcome, CounterId, LimitResult, StoreError,
};
use tollgate::internal::store::{Charge, ChargeReceipt, Enforcement, LimitOutcome};
use tollgate::internal::track::central::{CentralTrackStore, SharedTrack};
use tollgate::internal::track::{Delta, Track};

use super::*;

/// A store in which counters of some rules fail. It answers at once.
#[derive(Default)]
struct Faulty {
    down: Vec<&'static str>,
    states: Mutex<HashMap<CounterId, QuotaState>>,
    calls: AtomicU64,
    records: Mutex<HashMap<CounterId, (Track, u64)>>,
}

impl Faulty {
    fn without(down: &[&'static str]) -> Faulty {
        Faulty { down: down.to_vec(), ..Faulty::default() }
    }

    fn decide(&self, charges: &[Charge], take: bool, now: Time) -> CentralOutcome {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut states = self.states.lock().expect("no test panics with it");
        let decide = |charge: &Charge| {
            let state = states.get(&charge.counter().id).cloned();
            let quota = charge.quota;
            let decision = quota.decide(&state.unwrap_or_else(|| quota.fresh()), now, charge.cost);
            LimitOutcome { decision, remaining: decision.left, reset_after: SECOND, grant: None }
        };
        let answer = |charge: &Charge| match self.down.contains(&&*charge.counter().id.rule) {
            true => LimitResult::Failed(StoreError::Deadline { server: "test".to_owned() }),
            false => LimitResult::Answered(decide(charge)),
        };
        let mut limits: Vec<_> = charges.iter().map(answer).collect();
        let denies = |(charge, result): (&Charge, &LimitResult)| {
            charge.enforcement == Enforcement::Enforced
                && result.outcome().is_some_and(|outcome| !outcome.decision.is_allowed())
        };
        let admitted = !charges.iter().zip(&limits).any(denies);
        for (charge, result) in charges.iter().zip(&mut limits) {
            if let LimitResult::Answered(part) = result
                && take
                && admitted
                && part.decision.is_allowed()
            {
                let quota = charge.quota;
                let state = states.entry(charge.counter().id.clone()).or_insert_with(|| quota.fresh());
                quota.charge(state, now, charge.cost);
                part.remaining -= charge.cost;
                part.grant = Some(Grant { at: now, cost: charge.cost, mark: quota.mark(state) });
            }
        }
        CentralOutcome { admitted, limits }
    }

    fn give_back(&self, receipt: ChargeReceipt, now: Time) {
        let mut states = self.states.lock().expect("no test panics with it");
        for item in receipt.items() {
            let state = states.get_mut(&item.counter().id).expect("it was charged");
            item.quota.refund(state, &item.grant, item.grant.cost, now);
        }
    }

    fn used(&self, rule: &str, limit: &str, now: Time) -> u64 {
        let quota = Quota::new(&Limit::per(limit.parse().expect("a rate")));
        let states = self.states.lock().expect("no test panics with it");
        states
            .iter()
            .find(|(counter, _)| &*counter.rule == rule)
            .map_or(0, |(_, state)| quota.used(state, now))
    }
}

impl CentralCounterStore for Faulty {
    async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.decide(charges, true, now)
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.decide(charges, false, now)
    }

    async fn reset(&self, counter: &CentralCounter, _: Time) -> Result<bool, StoreError> {
        Ok(self.states.lock().expect("no test panics with it").remove(&counter.id).is_some())
    }
}

/// Records of one writer.
impl CentralTrackStore for Faulty {
    async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let mut records = self.records.lock().expect("no test panics with it");
        let (track, applied) = records.entry((*delta.counter).clone()).or_default();
        if delta.sequence > *applied {
            track.add(&delta.track, delta.tracking.times());
            *applied = delta.sequence;
        }
        Ok(())
    }

    async fn read_track(&self, counter: &CounterId, _: u64) -> Result<SharedTrack, StoreError> {
        if self.down.contains(&"records") {
            return Err(StoreError::Deadline { server: "test".to_owned() });
        }
        let records = self.records.lock().expect("no test panics with it");
        let (track, applied) = records.get(counter).cloned().unwrap_or_default();
        Ok(SharedTrack { track, applied })
    }

    async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        self.records.lock().expect("no test panics with it").remove(counter);
        Ok(())
    }
}

/// The output of a future that never waits.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the test's store answers at once"),
    }
}

fn check(engine: &EngineCore, store: &Faulty, hit: &Hit<'_>, now: Time) -> CentralVerdict {
    ready(engine.decide_central(&engine.policy(), hit, now, DecisionMode::Check, store))
}

fn peek(engine: &EngineCore, store: &Faulty, hit: &Hit<'_>, now: Time) -> EngineVerdict {
    ready(engine.decide_central(&engine.policy(), hit, now, DecisionMode::Peek, store)).verdict
}

fn inspect(
    engine: &EngineCore,
    store: &Faulty,
    (rule, key): (&str, Key),
    now: Time,
    mode: InspectMode,
) -> Result<KeyReport, InspectError> {
    ready(engine.inspect_central(rule, key, now, mode, store))
}

fn with_store(rules: &str, store: StoreSettings) -> EngineCore {
    let root = document::read(rules).expect("YAML");
    let mut parts = PolicyParts::default();
    let mut problems = Problems::new();
    let mut map = MapReader::new(&root, "", &mut problems).expect("a map");
    parts.read(&mut map);
    parts.settings.store = store;
    EngineCore::new(PolicySnapshot::new(parts).expect("valid rules"))
}

#[test]
fn counters_elsewhere_decide_as_those_in_memory_do() {
    for algorithm in ALGORITHMS {
        let rules =
            format!("rules: [{{id: a, key: user, limit: 3/m, {algorithm}}}, {{id: all, limit: 100/m}}]");
        let near = engine(&rules);
        let far = engine(&rules);
        let store = Faulty::default();
        for n in 0..8 {
            let now = NOW + SECOND * n;
            let hit = Hit::by("ann");
            let here = near.check(&hit, now);
            let there = check(&far, &store, &hit, now).verdict;
            let summary = |verdict: &EngineVerdict| (verdict.allowed, verdict.reason, verdict.retry_after);
            let left = |verdict: &EngineVerdict| {
                verdict.limits().iter().map(|limit| limit.remaining()).collect::<Vec<_>>()
            };
            assert_eq!(summary(&here), summary(&there), "{algorithm} {n}");
            if here.allowed {
                assert_eq!(left(&here), left(&there), "{algorithm} {n}");
            }
        }
    }
}

#[test]
fn a_rule_that_fails_open_is_skipped_and_one_that_fails_closed_refuses() {
    let rules = "rules:
      - {id: a, key: user, limit: 5/m}
      - {id: b, key: user, limit: 5/m, on_store_error: open}
      - {id: c, key: user, limit: 5/m, on_store_error: closed}";
    let engine = engine(rules);
    let open = Faulty::without(&["b"]);
    let mut decided = check(&engine, &open, &Hit::by("ann"), NOW);
    assert_eq!((decided.verdict.allowed, decided.verdict.reason), (true, Reason::StoreError));
    assert_eq!(decided.verdict.enforced().count(), 2, "b has no part in it");
    assert!(decided.verdict.take_receipt().is_some() && decided.error.is_some());

    let closed = Faulty::without(&["c"]);
    let decided = check(&engine, &closed, &Hit::by("ann"), NOW);
    assert_eq!((decided.verdict.allowed, decided.verdict.reason), (false, Reason::StoreError));
    assert_eq!(decided.verdict.retry_after, None);
    assert_eq!(closed.used("a", "5/m", NOW), 1);
    closed.give_back(decided.to_refund.expect("a and b were charged"), NOW);
    assert_eq!(closed.used("a", "5/m", NOW), 0, "a refusal gives back what was charged");
}

#[test]
fn a_denial_by_a_reachable_counter_stands() {
    let rules =
        "rules: [{id: a, key: user, limit: 1/m}, {id: c, key: user, limit: 5/m, on_store_error: closed}]";
    let engine = engine(rules);
    let store = Faulty::without(&["c"]);
    store.decide(&charges_of(&engine, "a"), true, NOW);
    let verdict = check(&engine, &store, &Hit::by("ann"), NOW).verdict;
    assert_eq!((verdict.allowed, verdict.reason), (false, Reason::Limit));
    assert_eq!(verdict.reported().map(|limit| limit.rule.id.to_string()).as_deref(), Some("a"));
}

/// A charge of one rule for ann, as the engine would make it.
fn charges_of(engine: &EngineCore, rule: &str) -> Vec<Charge> {
    let probe = Faulty::default();
    check(engine, &probe, &Hit::by("ann"), NOW);
    let counter = probe
        .states
        .lock()
        .expect("no test panics with it")
        .keys()
        .find(|counter| &*counter.rule == rule)
        .cloned();
    let limit = engine.policy().rule(rule).and_then(|rule| Some(rule.limits.all().next()?.limit));
    let id = counter.expect("it was charged");
    vec![Charge::central(CentralCounter { id, limit: limit.expect("it has a limit") })]
}

#[test]
fn a_rule_that_fails_to_local_counts_the_nodes_share() {
    let settings = StoreSettings { on_error: OnStoreError::Local, nodes: 3, deny_cache: true };
    let engine = with_store("rules: [{id: a, key: user, limit: 10/h}]", settings);
    let store = Faulty::without(&["a"]);
    let decided: Vec<_> = (0..6).map(|_| check(&engine, &store, &Hit::by("ann"), NOW).verdict).collect();
    let allowed = decided.iter().filter(|verdict| verdict.allowed).count();
    assert_eq!(allowed, 4, "a third of ten, rounded up");
    assert_eq!((decided[0].reason, decided[5].reason), (Reason::StoreError, Reason::Limit));
    // A charge of a local counter is refunded there.
    let receipt = decided.into_iter().find_map(|mut verdict| verdict.take_receipt()).expect("it was charged");
    let (here, there) = receipt.split_by_store();
    assert!(there.is_none());
    engine.refund(here.expect("it was counted in memory"), NOW);
    assert!(check(&engine, &store, &Hit::by("ann"), NOW).verdict.allowed);
}

/// A key at its limit got its whole share again when the store went away.
#[test]
fn a_key_last_seen_at_its_limit_stays_denied_until_it_may_pass_again() {
    for deny_cache in [true, false] {
        let settings = StoreSettings { on_error: OnStoreError::Local, nodes: 1, deny_cache };
        let rules = "rules: [{id: a, key: user, limit: 6/m}, {id: b, key: user, limit: 100/h}]";
        let engine = with_store(rules, settings);
        let mut store = Faulty::default();
        let ann = Hit::by("ann");
        let bob = Hit::by("bob");
        assert!((0..6).all(|_| check(&engine, &store, &ann, NOW).verdict.allowed));
        assert!(!check(&engine, &store, &ann, NOW).verdict.allowed);

        store.down = vec!["a", "b"];
        for second in 0..10 {
            let now = NOW + SECOND * second;
            let verdict = check(&engine, &store, &ann, now).verdict;
            assert_eq!((verdict.allowed, verdict.reason), (false, Reason::Limit), "{second} {deny_cache}");
            assert_eq!(verdict.retry_after, Some(SECOND * (10 - second)));
            assert_eq!(peek(&engine, &store, &ann, now).retry_after, verdict.retry_after);
        }
        let passes = |hit: &Hit<'_>, now| {
            (0..200).filter(|_| check(&engine, &store, hit, now).verdict.allowed).count()
        };
        assert_eq!(passes(&bob, NOW), 6, "who was not denied has the node's share");
        assert!(peek(&engine, &store, &ann, NOW + SECOND * 10).allowed);
        assert_eq!(passes(&ann, NOW + SECOND * 10), 6, "and so has a key that may pass again");
        let denied = peek(&engine, &store, &ann, NOW + SECOND * 10);
        assert_eq!((denied.allowed, denied.reason), (false, Reason::Limit), "a peek sees the share");
    }
}

#[test]
fn a_denial_that_was_undone_is_not_counted() {
    let settings = StoreSettings { on_error: OnStoreError::Local, nodes: 1, deny_cache: false };
    let (engine, mut store) =
        (with_store("rules: [{id: a, key: user, limit: 1/h}]", settings), Faulty::default());
    let allowed = |store: &Faulty| check(&engine, store, &Hit::by("ann"), NOW).verdict.allowed;
    assert_eq!((allowed(&store), allowed(&store)), (true, false));
    store.states.lock().expect("no test panics with it").clear(); // another node has reset the key
    assert!(allowed(&store));
    store.down = vec!["a"];
    assert!(allowed(&store), "what was last seen is that it passed");
}

#[test]
fn shadow_rules_without_an_answer_do_not_affect_the_verdict() {
    let rules = "rules: [{id: a, key: user, limit: 5/m}, {id: s, key: user, limit: 1/m, mode: shadow, on_store_error: closed}]";
    let engine = engine(rules);
    let store = Faulty::without(&["s"]);
    let verdict = check(&engine, &store, &Hit::by("ann"), NOW).verdict;
    assert_eq!((verdict.allowed, verdict.reason), (true, Reason::Ok));
}

#[test]
fn a_recent_denial_is_repeated_without_a_call_to_the_store() {
    let engine = engine(
        "rules: [{id: a, key: user, limit: 2/m, ban: {key: user, after: 100, within: 1h, for: 1h, max: 1d}}]",
    );
    let store = Faulty::default();
    let check_at = |cost, now| check(&engine, &store, &Hit::by("ann").cost(cost), now).verdict;
    assert!(check_at(2, NOW).allowed);
    let calls = || store.calls.load(Ordering::Relaxed);
    assert_eq!(check_at(1, NOW).retry_after, Some(SECOND * 30));
    let before = calls();
    for tenth in 0..10 {
        let verdict = check_at(1, NOW + SECOND / 10 * tenth);
        assert_eq!(verdict.retry_after, Some(SECOND * 30 - SECOND / 10 * tenth));
        assert_eq!((verdict.reason, verdict.limits()[0].remaining()), (Reason::Limit, 0));
    }
    assert_eq!(calls(), before, "no round trip");
    let tally = engine.policy().rule("a").expect("a record").counts();
    assert_eq!(tally.denied, 11, "they count as tries");
    check_at(1, NOW + SECOND);
    assert_eq!(calls(), before + 1, "for a second");
    // A reset and a changed limit are seen at once.
    inspect(&engine, &store, ("a", key("user:ann")), NOW + SECOND, InspectMode::Reset)
        .expect("it can be reset");
    assert!(check_at(2, NOW + SECOND).allowed);
    assert!(!check_at(1, NOW + SECOND).allowed);
    engine.apply(policy("rules: [{id: a, key: user, limit: 9/m}]"), NOW + SECOND);
    let before = calls();
    check_at(1, NOW + SECOND);
    assert_eq!(calls(), before + 1, "under other rules the store is called again");
}

#[test]
fn a_denial_that_may_be_undone_is_not_cached() {
    for option in ["count_denied: true", "count_when: success", "algorithm: concurrency"] {
        let rules = format!("rules: [{{id: a, key: user, limit: 1/m, {option}}}]");
        let engine = engine(&rules);
        let store = Faulty::default();
        for _ in 0..4 {
            check(&engine, &store, &Hit::by("ann"), NOW);
        }
        assert_eq!(store.calls.load(Ordering::Relaxed), 4, "{option}");
    }
    let settings = StoreSettings { deny_cache: false, ..StoreSettings::default() };
    let (engine, store) =
        (with_store("rules: [{id: a, key: user, limit: 1/m}]", settings), Faulty::default());
    for _ in 0..4 {
        check(&engine, &store, &Hit::by("ann"), NOW);
    }
    assert_eq!(store.calls.load(Ordering::Relaxed), 4, "switched off");
}

#[test]
fn a_key_is_looked_up_where_it_is_counted() {
    let engine = engine("rules: [{id: a, key: [user, ip], limit: 5/m}]");
    let store = Faulty::default();
    let hit = Hit::by("ann").ip("1.2.3.4".parse().expect("an address"));
    check(&engine, &store, &hit, NOW);
    let counters: Vec<CounterId> =
        store.states.lock().expect("no test panics with it").keys().cloned().collect();
    let key_of = &counters[0].key;
    assert_eq!(key_of.to_string(), "ip:1.2.3.4+user:ann");
    assert_eq!(key_of.owner().map(ToString::to_string).as_deref(), Some("user:ann"));
    let report = inspect(&engine, &store, ("a", key("ip:1.2.3.4+user:ann")), NOW, InspectMode::Read)
        .expect("a report");
    assert_eq!((report.limits[0].used, report.limits[0].remaining), (1, 4));
    let unknown = inspect(&engine, &store, ("b", key("user:ann")), NOW, InspectMode::Read);
    assert!(matches!(unknown, Err(InspectError::NoRule(_))));
}

#[test]
fn the_panic_switch_holds_where_rules_fail_closed() {
    let settings = StoreSettings { on_error: OnStoreError::Closed, ..StoreSettings::default() };
    let engine = with_store(
        "{rules: [{id: a, key: user, limit: 1/h}, {id: b, limit: 0/h}], bans: [{key: 'user:evil'}]}",
        settings,
    );
    let store = Faulty::without(&["a"]);
    let hit = Hit::by("ann");
    assert_eq!(check(&engine, &store, &hit, NOW).verdict.reason, Reason::Limit, "the one that answers");
    assert_eq!(check(&engine, &Faulty::without(&["a", "b"]), &hit, NOW).verdict.reason, Reason::StoreError);
    for (enforce, limits) in [(Enforce::Shadow, 2), (Enforce::Off, 0)] {
        engine.set_enforce(enforce);
        for hit in [&hit, &Hit::by("evil")] {
            let calls = store.calls.load(Ordering::Relaxed);
            let checked = check(&engine, &store, hit, NOW);
            let peeked = peek(&engine, &store, hit, NOW);
            assert!(checked.to_refund.is_none());
            for verdict in [checked.verdict, peeked] {
                assert_eq!((verdict.allowed, verdict.reason), (true, Reason::NoRule), "{enforce:?}");
                assert_eq!(verdict.limits().len(), limits);
            }
            let new_calls = store.calls.load(Ordering::Relaxed) - calls;
            assert_eq!(new_calls, limits as u64, "a check and a peek, or nothing at all");
        }
    }
}

#[test]
fn a_tracked_key_is_its_record_and_what_was_not_written_yet() {
    let engine =
        engine("rules: [{id: a, key: user, limit: 2/h, track: {times: 3}}, {id: b, key: user, limit: 9/h}]");
    let mut store = Faulty::default();
    let hit = Hit::by("ann");
    let seen = |store: &Faulty| {
        let report =
            inspect(&engine, store, ("a", key("user:ann")), NOW, InspectMode::Read).expect("a report");
        let track = report.track.expect("it tracks");
        assert_eq!((track.latest.len() as u64).min(3), track.tries.min(3));
        (report.scope.name(), track.tries, track.denials)
    };
    check(&engine, &store, &hit, NOW);
    check(&engine, &store, &hit, NOW);
    assert_eq!(seen(&store), ("fleet", 2, 0), "before anything is written");
    let delta = engine.outbox().take(NOW).expect("one key is tracked");
    check(&engine, &store, &hit, NOW);
    ready(store.add_track(&delta)).expect("it is written");
    assert_eq!(seen(&store), ("fleet", 3, 1), "written, and the node does not know it yet");
    ready(store.add_track(&delta)).expect("it is written again");
    engine.outbox().acknowledge(&delta);
    assert_eq!(seen(&store), ("fleet", 3, 1), "sent twice, counted once");
    assert!(engine.outbox().take(NOW).is_none(), "once a second");

    store.down = vec!["records"];
    let report = inspect(&engine, &store, ("a", key("user:ann")), NOW, InspectMode::Read).expect("a report");
    assert_eq!((report.scope.name(), report.track.map(|track| track.tries)), ("node", Some(3)));
    assert!(report.store_error.is_some() && report.limits.len() == 1);
    store.down = vec!["a"];
    let report = inspect(&engine, &store, ("a", key("user:ann")), NOW, InspectMode::Read).expect("a report");
    assert!(report.scope.name() == "fleet" && report.limits.is_empty() && report.store_error.is_some());
    store.down = vec!["a", "b", "records"];
    assert_eq!(seen(&store), ("node", 3, 1), "what this node knows");
    let untracked = inspect(&engine, &store, ("b", key("user:ann")), NOW, InspectMode::Read);
    assert!(matches!(untracked, Err(InspectError::Store(_))));
    store.down.clear();

    let forgotten =
        inspect(&engine, &store, ("a", key("user:ann")), NOW, InspectMode::Reset).expect("it can be reset");
    assert_eq!(forgotten.track.map(|track| track.tries), Some(3));
    assert_eq!(seen(&store), ("fleet", 0, 0), "record, outbox and memory");
    assert!(engine.outbox().take(Time::MAX).is_none());
}
