//! The state log: what is appended while an engine is in use is enough to go on from.

use std::hash::Hasher;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use siphasher::sip::SipHasher13;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::changes::Changes;
use tollgate::internal::engine::Restored;
use tollgate::internal::engine::log::{Chunk, Frames, Image};
use tollgate::internal::identity::Key;
use tollgate::internal::{EngineCore, EngineSetup, PolicySnapshot};
use tollgate::{Hit, Reason, Time};

const NOW: Time = Time::from_secs(1_799_971_200);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

const RULES: &str = "rules:
  - {id: gcra, match: /gcra, key: user, limit: 50/h}
  - {id: odd, match: /odd, key: user, limit: 7/11m}
  - {id: window, match: /window, key: user, limit: 50/h, algorithm: fixed-window}
  - {id: counter, match: /counter, key: user, limit: 50/h, algorithm: sliding-counter}
  - {id: log, match: /log, key: user, limit: 50/h, algorithm: sliding-log}
  - {id: tiers, match: /tiers, key: user, limit: 50/h, algorithm: tiered-window}
  - {id: strict, match: /strict, key: user, limit: 2/h, track: true, ban: {key: [user], after: 3, for: 1h}}
";
const TARGETS: [&str; 6] = ["/gcra", "/odd", "/window", "/counter", "/log", "/tiers"];

fn policy() -> PolicySnapshot {
    PolicySnapshot::from_yaml(RULES).expect("valid rules")
}

fn setup() -> EngineSetup {
    EngineSetup { changes: Changes::Recorded, memory_bytes: 8 << 20, ..EngineSetup::default() }
}

fn engine() -> EngineCore {
    EngineCore::with_setup(policy(), setup())
}

/// A file in memory.
struct File {
    bytes: Vec<u8>,
    frames: Frames,
}

impl File {
    /// A file that begins with an image.
    fn of(engine: &EngineCore, now: Time) -> File {
        let mut file = File::begun(engine, now);
        let mut image = Image::default();
        engine.write_image(&mut image, u64::MAX, now, &mut |chunk| file.append(&chunk)).expect("memory");
        assert!(image.is_done());
        file
    }

    fn begun(engine: &EngineCore, now: Time) -> File {
        let (frames, bytes) = engine.begin_log();
        let mut file = File { bytes, frames };
        engine.write_rules(RULES, now, &mut |chunk| file.append(&chunk)).expect("memory");
        file
    }

    fn append(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.bytes.extend(self.frames.frame(chunk));
        self.frames.advance();
        Ok(())
    }

    /// Appends what has changed; the bytes that this takes.
    fn update(&mut self, engine: &EngineCore, now: Time) -> usize {
        let before = self.bytes.len();
        engine.write_changes(now, &mut |chunk| self.append(&chunk)).expect("memory");
        self.bytes.len() - before
    }

    fn restored(&self, now: Time) -> EngineCore {
        restore(&self.bytes, now).0
    }
}

fn restore(bytes: &[u8], now: Time) -> (EngineCore, Restored) {
    let former = |rules: &str| PolicySnapshot::from_yaml(rules).ok();
    EngineCore::restore(policy(), setup(), bytes, former, now).expect("the header is sound")
}

fn hit(engine: &EngineCore, target: &str, user: &str, now: Time) -> Reason {
    engine.check(&Hit::on("GET", "", target).user(user), now).reason
}

/// The state of some users under every rule.
fn verdicts(engine: &EngineCore, users: u64, now: Time) -> Vec<String> {
    let each = |user: u64| {
        TARGETS.map(|target| {
            let verdict = engine.peek(&Hit::on("GET", "", target).user(user.to_string()), now);
            let limit = verdict.limits().first().map(|limit| (limit.remaining(), limit.reset_after()));
            format!("{target} {user}: {:?} {limit:?}", verdict.reason)
        })
    };
    (0..users).flat_map(each).collect()
}

/// Numbers that look random and are the same every time.
fn scrambled(n: u64) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(n);
    hasher.finish()
}

#[test]
fn the_image_and_appended_changes_restore_the_state() {
    const USERS: u64 = 300;
    let engine = engine();
    let mut file = File::of(&engine, NOW);
    let mut now = NOW;
    for round in 0..15 {
        for n in 0..60 {
            let draw = scrambled(round * 1000 + n);
            let user = (draw % USERS).to_string();
            let target = TARGETS[(draw >> 32) as usize % TARGETS.len()];
            let hit = Hit::on("GET", "", target).user(user.as_str()).cost(1 + (draw >> 40) % 4);
            let mut verdict = engine.check(&hit, now);
            match (draw >> 50) % 8 {
                0 => verdict.take_receipt().into_iter().for_each(|receipt| engine.refund(receipt, now)),
                1 => {
                    let key = Key::parse(&format!("user:{user}")).expect("a key");
                    engine.reset_key(&target[1..], key, now).expect("the rule is there");
                }
                _ => {}
            }
        }
        now = now + SECOND;
        file.update(&engine, now);
        let copy = file.restored(now);
        assert_eq!(verdicts(&copy, USERS, now), verdicts(&engine, USERS, now), "round {round}");
    }
    assert_eq!(file.update(&engine, now), 0, "nothing has changed since");
}

#[test]
fn what_is_written_is_proportional_to_the_keys_that_changed() {
    const KEYS: u64 = 100_000;
    let engine = engine();
    for user in 0..KEYS {
        hit(&engine, "/gcra", &user.to_string(), NOW);
    }
    let mut file = File::of(&engine, NOW);
    file.update(&engine, NOW);
    let image = file.bytes.len();
    assert_eq!(restore(&file.bytes, NOW).1.counters, KEYS);
    let one = (0..20).map(|user: u64| {
        hit(&engine, "/gcra", &user.to_string(), NOW + SECOND);
        file.update(&engine, NOW + SECOND)
    });
    let one = one.max().expect("some");
    // Its line has three neighbours; a frame, a class and a time go with it.
    assert!(one <= 200, "{one} bytes for a key");
    for user in 0..1000u64 {
        hit(&engine, "/gcra", &user.to_string(), NOW + SECOND);
    }
    let thousand = file.update(&engine, NOW + SECOND);
    assert!((19_000..100_000).contains(&thousand), "{thousand} bytes for a thousand keys, {image} for all");
}

#[test]
fn denials_write_nothing() {
    let engine = engine();
    for _ in 0..60 {
        TARGETS.iter().for_each(|target| _ = hit(&engine, target, "u", NOW));
    }
    let mut file = File::of(&engine, NOW);
    file.update(&engine, NOW);
    for target in TARGETS {
        assert_eq!(hit(&engine, target, "u", NOW), Reason::Limit);
    }
    assert_eq!(file.update(&engine, NOW), 0);
}

#[test]
fn bans_strikes_and_tracks_are_appended_and_removed() {
    let engine = engine();
    let mut file = File::of(&engine, NOW);
    let key = |user: &str| Key::parse(&format!("user:{user}")).expect("a key");
    let by_hand =
        || Ban { until: NOW + HOUR, reason: "by hand".into(), source: BanSource::Manual, strikes: 0 };
    (0..5).for_each(|_| _ = hit(&engine, "/strict", "banned", NOW));
    (0..4).for_each(|_| _ = hit(&engine, "/strict", "nearly", NOW));
    engine.ban(key("lifted"), by_hand(), NOW);
    engine.ban(key("manual"), by_hand(), NOW);
    file.update(&engine, NOW);
    engine.unban(key("lifted"), NOW);
    engine.reset_key("strict", key("nearly"), NOW).expect("the rule is there");
    file.update(&engine, NOW);

    let (copy, restored) = restore(&file.bytes, NOW);
    assert_eq!((restored.bans, restored.tracked_keys), (2, 1));
    assert_eq!(copy.bans(NOW), engine.bans(NOW));
    assert_eq!(hit(&copy, "/gcra", "banned", NOW), Reason::Ban);
    let track = |engine: &EngineCore, user| engine.key("strict", key(user), NOW).expect("a rule").track;
    for user in ["banned", "nearly"] {
        assert_eq!(track(&copy, user), track(&engine, user), "{user}");
    }
    (0..2).for_each(|_| assert_eq!(hit(&copy, "/strict", "nearly", NOW), Reason::Ok));
    assert_eq!(hit(&copy, "/strict", "nearly", NOW), Reason::Limit, "its third denial");
    assert_eq!(hit(&copy, "/strict", "nearly", NOW), Reason::Ban);
}

/// Every cut leaves what was written before it: never less, never something else.
#[test]
fn a_file_torn_anywhere_has_what_was_complete_before() {
    let engine = engine();
    let mut file = File::of(&engine, NOW);
    let mut complete = vec![file.bytes.len()];
    for used in 1..=5 {
        hit(&engine, "/gcra", "u", NOW);
        assert!(file.update(&engine, NOW) > 0, "{used}");
        complete.push(file.bytes.len());
    }
    let remaining = |bytes: &[u8]| {
        let (copy, restored) = restore(bytes, NOW);
        let (_, length) = restored.end.expect("it can be appended to");
        assert_eq!(length + restored.unused_bytes, bytes.len() as u64);
        copy.peek(&Hit::on("GET", "", "/gcra").user("u"), NOW).limits()[0].remaining()
    };
    for at in complete[0]..file.bytes.len() {
        let updates = complete.iter().filter(|end| **end <= at).count() as u64 - 1;
        assert_eq!(remaining(&file.bytes[..at]), 50 - updates, "cut at {at}");
        let mut flipped = file.bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(remaining(&flipped), 50 - updates, "flipped at {at}");
    }
}

#[test]
fn a_torn_file_is_appended_to_where_it_was_cut() {
    let engine = engine();
    let mut file = File::of(&engine, NOW);
    hit(&engine, "/gcra", "u", NOW);
    file.update(&engine, NOW);
    let complete = file.bytes.len();
    hit(&engine, "/gcra", "v", NOW);
    file.update(&engine, NOW);
    let (copy, restored) = restore(&file.bytes[..file.bytes.len() - 1], NOW);
    let (frames, length) = restored.end.expect("it can be appended to");
    assert_eq!(length, complete as u64);
    let mut file = File { bytes: file.bytes[..complete].to_vec(), frames };
    hit(&copy, "/gcra", "w", NOW);
    file.update(&copy, NOW);
    assert_eq!(restore(&file.bytes, NOW).1.counters, 2, "u and w");
}

/// Frames of an earlier file may be left over on the disk.
#[test]
fn a_frame_of_another_file_or_offset_is_rejected() {
    let engine = engine();
    let mut one = File::of(&engine, NOW);
    let mut other = File::of(&engine, NOW);
    let one_ends = one.bytes.len();
    let other_ends = other.bytes.len();
    hit(&engine, "/gcra", "u", NOW);
    one.update(&engine, NOW);
    hit(&engine, "/gcra", "v", NOW);
    other.update(&engine, NOW);
    let mixed = [&one.bytes[..one_ends], &other.bytes[other_ends..]].concat();
    assert_eq!(restore(&mixed, NOW).1.counters, 0);
    let repeated = [&one.bytes[..], &one.bytes[one_ends..]].concat();
    assert_eq!(restore(&repeated, NOW).1.unused_bytes, (one.bytes.len() - one_ends) as u64);
}

/// A writer that fails keeps its chunk; nothing else is lost.
#[test]
fn changes_that_could_not_be_written_are_written_later() {
    const USERS: u64 = 3_000;
    let engine = engine();
    let mut file = File::of(&engine, NOW);
    let mut kept: Vec<Chunk> = Vec::new();
    for round in 0..6 {
        for user in 0..USERS {
            hit(&engine, TARGETS[(user % 6) as usize], &user.to_string(), NOW);
            if user % 50 == 0 {
                hit(&engine, "/strict", &user.to_string(), NOW);
            }
        }
        let mut room = round % 3;
        for chunk in kept.drain(..) {
            file.append(&chunk).expect("memory");
        }
        let written = engine.write_changes(NOW, &mut |chunk| {
            if room == 0 {
                kept.push(chunk);
                return Err(io::ErrorKind::StorageFull.into());
            }
            room -= 1;
            file.append(&chunk)
        });
        assert_eq!(written.is_err(), !kept.is_empty());
    }
    kept.drain(..).for_each(|chunk| file.append(&chunk).expect("memory"));
    file.update(&engine, NOW);
    let (copy, restored) = restore(&file.bytes, NOW);
    assert_eq!(verdicts(&copy, USERS, NOW), verdicts(&engine, USERS, NOW));
    assert_eq!(restored.tracked_keys, USERS / 50);
}

/// Threads charge, keys move as the table grows, and an image is written bit by bit beside the changes.
#[test]
fn nothing_is_missed_while_threads_charge() {
    const USERS: u64 = 2_000;
    for round in 0..2 {
        let engine = engine();
        let stop = AtomicBool::new(false);
        let mut old = File::of(&engine, NOW);
        let mut new = File::begun(&engine, NOW);
        thread::scope(|threads| {
            for thread in 0..3 {
                let engine = &engine;
                let stop = &stop;
                threads.spawn(move || {
                    for n in 0..USERS {
                        let user = scrambled(round << 40 | thread << 32 | n) % USERS;
                        let target = TARGETS[(n % 6) as usize];
                        hit(engine, target, &user.to_string(), NOW);
                    }
                    stop.store(true, Ordering::Release);
                });
            }
            let mut image = Image::default();
            while !stop.load(Ordering::Acquire) || !image.is_done() {
                let both = &mut |chunk: Chunk| {
                    old.append(&chunk)?;
                    new.append(&chunk)
                };
                engine.write_changes(NOW, both).expect("memory");
                engine.write_image(&mut image, 1000, NOW, &mut |chunk| new.append(&chunk)).expect("memory");
            }
        });
        let both = &mut |chunk: Chunk| {
            old.append(&chunk)?;
            new.append(&chunk)
        };
        engine.write_changes(NOW, both).expect("memory");
        let wanted = verdicts(&engine, USERS, NOW);
        assert_eq!(verdicts(&old.restored(NOW), USERS, NOW), wanted, "the log");
        assert_eq!(
            verdicts(&new.restored(NOW), USERS, NOW),
            wanted,
            "the image and the changes since it was begun"
        );
    }
}

/// A checksum does not prove that the contents are valid: an attacker who can write the file can compute one.
#[test]
fn nonsense_in_a_frame_ends_the_log_and_does_not_panic() {
    let engine = engine();
    TARGETS.iter().for_each(|target| _ = hit(&engine, target, "u", NOW));
    (0..5).for_each(|_| _ = hit(&engine, "/strict", "banned", NOW));
    let file = File::of(&engine, NOW);
    let number = |at: usize| u64::from_le_bytes(file.bytes[at..at + 8].try_into().expect("eight bytes"));
    let length =
        |at: usize| u32::from_le_bytes(file.bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let rules = file.bytes.windows(7).position(|at| at == b"rules:\n").expect("the rules") - 29;
    let second = rules + 12 + length(rules);
    let chunk = second + 12;
    assert_eq!(chunk + length(second), file.bytes.len());
    for at in chunk..file.bytes.len() {
        for byte in [at as u8 % 13, 255] {
            let mut forged = file.bytes.clone();
            forged[at] = byte;
            let mut checksum = SipHasher13::new_with_keys(number(16), 1);
            checksum.write(&forged[chunk..]);
            forged[second + 4..chunk].copy_from_slice(&checksum.finish().to_le_bytes());
            let (copy, _) = restore(&forged, NOW);
            File::of(&copy, NOW);
        }
    }
}

/// More changes than are recorded: the log requires a full image.
#[test]
fn lost_changes_require_an_image() {
    let engine = engine();
    assert!(!engine.needs_image());
    for n in 0..70_000 {
        let ban = Ban { until: NOW + HOUR, reason: String::new(), source: BanSource::Manual, strikes: 0 };
        engine.ban(Key::parse(&format!("user:{n}")).expect("a key"), ban, NOW);
    }
    let mut file = File::of(&engine, NOW);
    file.update(&engine, NOW);
    assert!(engine.needs_image() && !engine.needs_image());
    assert_eq!(restore(&file.bytes, NOW).1.bans, 70_000);
}

#[test]
fn a_clock_that_stepped_back_during_downtime_is_tolerated() {
    let engine = engine();
    TARGETS.iter().for_each(|target| _ = hit(&engine, target, "u", NOW));
    let mut file = File::of(&engine, NOW);
    for jump in [HOUR * 24 * 400, SECOND] {
        for now in [NOW - jump, NOW + jump] {
            let (copy, restored) = restore(&file.bytes, now);
            assert_eq!(restored.saved_at, NOW);
            hit(&copy, "/gcra", "v", now);
        }
    }
    // Inside of a process as well: what is written last counts.
    hit(&engine, "/gcra", "u", NOW + HOUR);
    file.update(&engine, NOW + HOUR);
    hit(&engine, "/gcra", "u", NOW);
    file.update(&engine, NOW);
    assert_eq!(verdicts(&file.restored(NOW), 1, NOW), verdicts(&engine, 1, NOW));
}
