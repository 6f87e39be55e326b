//! When deltas are made, retried and removed.

use super::*;
use crate::store::{CounterKey, KeyPart, Sensitivity};

const KEY: Fingerprint = Fingerprint(7);
const T: Time = Time::from_secs(1_000);
const SECOND: Duration = Duration::from_secs(1);

fn counter(key: &str) -> CounterId {
    let part = KeyPart { name: "user".into(), value: key.into(), sensitivity: Sensitivity::Public };
    CounterId { domain: "default".into(), rule: "r".into(), key: CounterKey::shared(vec![part]) }
}

fn count(outbox: &Outbox, now: Time) {
    outbox.count(KEY, now, 0, Tracking::default(), || counter("ann"));
}

#[test]
fn a_key_is_written_at_once_and_then_once_a_second() {
    let outbox = Outbox::default();
    let mut writes = Vec::new();
    for tenth in 0..50 {
        let now = T + SECOND / 10 * tenth;
        count(&outbox, now);
        while let Some(delta) = outbox.take(now) {
            outbox.acknowledge(&delta);
            writes.push((tenth, delta.track.tries));
        }
    }
    assert_eq!(writes, [(0, 1), (10, 10), (20, 10), (30, 10), (40, 10)]);
    let last = outbox.take(T + SECOND * 5).expect("the rest is due");
    assert_eq!((last.track.tries, last.track.latest.len()), (9, 9));
    outbox.acknowledge(&last);
    assert_eq!((outbox.due(), outbox.keys()), (Some(T + SECOND * 6), 1));
    assert!(outbox.take(T + SECOND * 6).is_none());
    assert_eq!((outbox.due(), outbox.keys(), outbox.dropped()), (None, 0, 0), "nothing is left to write");
    assert!(outbox.shards.iter().all(|shard| lock(shard).bytes == 0));
}

#[test]
fn a_delta_is_sent_again_as_it_was_until_it_is_acknowledged() {
    let outbox = Outbox::default();
    count(&outbox, T);
    let first = outbox.take(T).expect("it is due at once");
    count(&outbox, T);
    assert!(outbox.take(T + SECOND * 9).is_none(), "it is being written");
    outbox.retry(&first);
    assert!(outbox.take(T).is_none(), "a second try is a write, too");
    let again = outbox.take(T + SECOND).expect("it is due again");
    assert!(Arc::ptr_eq(&again, &first));
    let mut waits = Vec::new();
    let mut taken = T + SECOND;
    for _ in 0..5 {
        outbox.retry(&first);
        let due = outbox.due().expect("it is due again");
        waits.push(due.since(taken).as_secs());
        taken = due;
        assert!(Arc::ptr_eq(&outbox.take(due).expect("it is due"), &first));
    }
    assert_eq!(waits, [2, 4, 8, 8, 8]);
    outbox.acknowledge(&again);
    let next = outbox.take(taken + SECOND).expect("what was counted meanwhile");
    assert!(next.sequence > first.sequence && next.track.tries == 1);
}

#[test]
fn what_is_not_part_of_a_record_is_known_to_the_sequence() {
    let outbox = Outbox::default();
    count(&outbox, T);
    let first = outbox.take(T).expect("it is due at once");
    count(&outbox, T + SECOND);
    let unwritten = |applied| {
        let mut track = Track::default();
        outbox.add_unwritten(KEY, applied, 16, &mut track);
        track.tries
    };
    assert_eq!((unwritten(0), unwritten(first.sequence)), (2, 1));
    assert_eq!(outbox.acknowledged(KEY), 0);
    outbox.acknowledge(&first);
    assert_eq!(outbox.acknowledged(KEY), first.sequence);
    assert_eq!(unwritten(0), 2, "the record may have been read before");
    outbox.forget(KEY);
    assert_eq!((unwritten(0), outbox.keys()), (0, 0));
    count(&outbox, T + SECOND);
    outbox.acknowledge(&first);
    let fresh = outbox.take(T + SECOND).expect("a new entry is due at once");
    assert!(fresh.sequence > first.sequence && fresh.track.tries == 1);
    assert!(outbox.take(Time::MAX).is_none(), "it is in the queue once");
}

#[test]
fn memory_has_a_bound_and_what_finds_no_room_is_counted() {
    let outbox = Outbox::default();
    let long = "x".repeat(10_000);
    for n in 0..10_000 {
        outbox.count(Fingerprint(n), T, 0, Tracking::default(), || counter(&long));
    }
    let bytes: usize = outbox.shards.iter().map(|shard| lock(shard).bytes).sum();
    assert!(bytes < MAX_BYTES + SHARDS * 20_000, "{bytes}");
    assert_eq!(outbox.keys() as u64 + outbox.dropped(), 10_000);
    assert!(outbox.dropped() > 1_000);
    let mut written = 0;
    while let Some(delta) = outbox.take(Time::MAX) {
        outbox.discard(&delta);
        written += 1;
    }
    assert!(written > 1_000);
    assert_eq!((outbox.keys(), outbox.dropped()), (0, 10_000));
}
