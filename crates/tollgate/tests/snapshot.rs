//! A clean stop and a start: what comes back, and that nothing else does.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::engine::SavedStateError;
use tollgate::internal::identity::Key;
use tollgate::internal::{EngineCore, EngineSetup, PolicySnapshot};
use tollgate::{Hit, Reason, Time};

const NOW: Time = Time::from_secs(1_799_971_200);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

const ALGORITHMS: [&str; 13] = [
    "algorithm: gcra",
    "algorithm: gcra, limit: 7/11s", // no whole number of nanoseconds
    "algorithm: token-bucket",
    "algorithm: token-bucket, refill: tick, tick: 5s",
    "algorithm: token-bucket, refill: calendar",
    "algorithm: leaky-bucket, on_exceed: reject",
    "algorithm: fixed-window",
    "algorithm: fixed-window, window: first-hit",
    "algorithm: sliding-log",
    "algorithm: sliding-compact",
    "algorithm: sliding-counter",
    "algorithm: sliding-counter, limit: 600000000/m", // too large for eight bytes
    "algorithm: tiered-window",
];

/// One rule for each algorithm, with a limit of 10/m unless it says another.
fn all_rules() -> String {
    let rule = |(n, options): (usize, &&str)| {
        let limit = if options.contains("limit") { "" } else { "limit: 10/m, " };
        format!("  - {{id: r{n}, match: /r{n}, key: user, {limit}{options}}}\n")
    };
    format!("rules:\n{}", ALGORITHMS.iter().enumerate().map(rule).collect::<String>())
}

fn policy(yaml: &str) -> PolicySnapshot {
    PolicySnapshot::from_yaml(yaml).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"))
}

fn saved(engine: &EngineCore, rules: &str, now: Time) -> Vec<u8> {
    let mut bytes = Vec::new();
    engine.save(&mut bytes, rules, now).expect("a vector takes everything");
    bytes
}

fn restored(bytes: &[u8], rules: &str, now: Time) -> EngineCore {
    let former = |rules: &str| PolicySnapshot::from_yaml(rules).ok();
    let engine = EngineCore::restore(policy(rules), EngineSetup::default(), bytes, former, now);
    engine.expect("the saved state is sound").0
}

fn rejected(bytes: &[u8]) -> SavedStateError {
    let restored = EngineCore::restore(policy(""), EngineSetup::default(), bytes, |_| None, NOW);
    restored.map(|_| ()).expect_err("the saved state is damaged")
}

/// The results of a peek on every rule.
fn verdicts(engine: &EngineCore, now: Time) -> Vec<String> {
    let target = |n| format!("/r{n}");
    let verdicts = |n| {
        let verdict = engine.peek(&Hit::on("GET", "", &target(n)).user("u"), now);
        let limits = verdict.limits().iter().map(|each| {
            format!("{} {} {:?} {:?}", each.rule.id, each.remaining(), each.retry_after(), each.reset_after())
        });
        limits.collect::<String>()
    };
    (0..ALGORITHMS.len()).map(verdicts).collect()
}

/// An engine that has counted something of every kind.
fn used_engine() -> EngineCore {
    let engine = EngineCore::new(policy(&all_rules()));
    for second in [0, 20, 59, 61, 75] {
        for n in 0..ALGORITHMS.len() {
            let now = NOW + SECOND * second;
            engine.check(&Hit::on("GET", "", &format!("/r{n}")).user("u").cost(3), now);
        }
    }
    engine
}

#[test]
fn every_algorithm_resumes_from_its_saved_state() {
    let rules = all_rules();
    let engine = used_engine();
    let now = NOW + SECOND * 75;
    let copy = restored(&saved(&engine, &rules, now), &rules, now);
    for later in [0, 1, 12, 44, 45, 60, 120, 10_000] {
        let now = now + SECOND * later;
        assert_eq!(verdicts(&copy, now), verdicts(&engine, now), "{later} s later");
    }
}

#[test]
fn downtime_counts_as_elapsed() {
    let rules = all_rules();
    let engine = used_engine();
    let bytes = saved(&engine, &rules, NOW + SECOND * 75);
    for down in [10, 30, 60, 3_600] {
        let now = NOW + SECOND * (75 + down);
        assert_eq!(verdicts(&restored(&bytes, &rules, now), now), verdicts(&engine, now), "{down} s down");
    }
    let back = |now| {
        let restored = EngineCore::restore(policy(&rules), EngineSetup::default(), &bytes, |_| None, now);
        restored.expect("the saved state is sound").1
    };
    let soon = back(NOW + SECOND * 76);
    assert_eq!((soon.saved_at, soon.counters), (NOW + SECOND * 75, ALGORITHMS.len() as u64));
    assert_eq!(back(NOW + HOUR).counters, 0, "nothing of it matters any more");
}

#[test]
fn bans_and_strikes_survive() {
    let rules = "rules: [{id: r, key: ip, limit: 1/d, ban: {after: 2, for: 1h}}]\nbans: [{key: 'user:file'}]";
    let engine = EngineCore::new(policy(rules));
    let hit = || Hit::by("u").ip([192, 0, 2, 1].into());
    let manual =
        Ban { until: NOW + HOUR * 9, reason: "by hand".into(), source: BanSource::Manual, strikes: 0 };
    let manual_key = || Key::parse("user:a%2Bb+header:x-y:1 2").expect("a valid key");
    engine.ban(manual_key(), manual.clone(), NOW);
    (0..3).for_each(|_| _ = engine.check(&hit(), NOW));
    assert_eq!(engine.check(&hit(), NOW).reason, Reason::Ban);

    let bytes = saved(&engine, rules, NOW);
    let copy = restored(&bytes, rules, NOW + MINUTE);
    assert_eq!(copy.bans(NOW + MINUTE), engine.bans(NOW + MINUTE));
    assert_eq!(copy.find_ban(manual_key(), NOW), Some(manual));
    assert_eq!(copy.check(&hit(), NOW + MINUTE).reason, Reason::Ban);
    let relapse = NOW + HOUR;
    (0..2).for_each(|_| assert_eq!(copy.check(&hit(), relapse).reason, Reason::Limit));
    let ban = copy.find_ban(Key::parse("ip:192.0.2.1").expect("valid"), relapse).expect("banned again");
    assert_eq!((ban.strikes, ban.until), (2, relapse + HOUR * 2), "the second ban is twice as long");

    let without = restored(&bytes, "rules: []", NOW);
    assert!(without.check(&Hit::by("file"), NOW).allowed, "bans of the file are the file's");
}

#[test]
fn denials_that_led_to_no_ban_yet_survive() {
    let rules = "rules: [{id: r, key: ip, limit: 1/d, ban: {after: 2, for: 1h}}]";
    let engine = EngineCore::new(policy(rules));
    let hit = || Hit::by("u").ip([192, 0, 2, 1].into());
    (0..2).for_each(|_| _ = engine.check(&hit(), NOW));
    let copy = restored(&saved(&engine, rules, NOW), rules, NOW + MINUTE);
    assert_eq!(copy.check(&hit(), NOW + MINUTE).reason, Reason::Limit);
    assert_eq!(copy.check(&hit(), NOW + MINUTE).reason, Reason::Ban);
}

#[test]
fn a_limit_changed_while_it_was_down_keeps_what_its_keys_have_used() {
    for algorithm in ALGORITHMS.iter().filter(|options| !options.contains("limit")) {
        let rules = |count| format!("rules: [{{id: r, key: user, limit: {count}/m, {algorithm}}}]");
        let engine = EngineCore::new(policy(&rules(5)));
        (0..5).for_each(|_| assert!(engine.check(&Hit::by("u"), NOW).allowed));
        let bytes = saved(&engine, &rules(5), NOW);
        let copy = restored(&bytes, &rules(50), NOW);
        let verdict = copy.peek(&Hit::by("u"), NOW);
        assert_eq!(verdict.limits()[0].remaining(), 45, "{algorithm}");
        assert_eq!(verdict.id.generation, 2, "{algorithm}");
    }
}

#[test]
fn a_second_saved_state_of_the_same_state_is_identical() {
    let rules = all_rules();
    let now = NOW + SECOND * 75;
    let first = saved(&used_engine(), &rules, now);
    let second = saved(&restored(&first, &rules, now), &rules, now);
    assert_eq!(first.len(), second.len());
    assert_eq!(verdicts(&restored(&second, &rules, now), now), verdicts(&restored(&first, &rules, now), now));
}

#[test]
fn a_smaller_memory_cap_is_respected() {
    let rules = "rules: [{id: log, match: /log, key: user, limit: 5/h, algorithm: sliding-log}, {id: r, key: user, limit: 5/h}]";
    let engine = EngineCore::new(policy(rules));
    for n in 0..40_000 {
        engine.check(&Hit::on("GET", "", "/log").user(n.to_string()), NOW);
    }
    let bytes = saved(&engine, rules, NOW);
    let setup = EngineSetup { memory_bytes: 1 << 20, ..EngineSetup::default() };
    let (copy, _) = EngineCore::restore(policy(rules), setup, &bytes, |_| None, NOW).expect("sound");
    let usage = copy.store().usage();
    assert!(usage.bytes <= usage.cap_bytes && usage.keys > 1_000, "{usage:?}");
}

#[test]
fn bytes_that_are_not_a_saved_state_are_rejected() {
    for bytes in [&b""[..], b"TOLL", b"not a snapshot at all", &[0; 4096], b"TOLLGATF\x01\0\0\0\0\0\0\0"] {
        assert_eq!(rejected(bytes), SavedStateError::NotASavedState);
    }
    assert_eq!(rejected(b"TOLLGATE"), SavedStateError::Checksum);
    assert_eq!(rejected(b"TOLLGATE\x03\0\0\0\0\0\0\0"), SavedStateError::Checksum);
}

/// Restores damaged bytes: what counters there are then, or why none are.
fn counters_of(bytes: &[u8], now: Time) -> Result<u64, SavedStateError> {
    let restored = EngineCore::restore(policy(""), EngineSetup::default(), bytes, |_| None, now);
    restored.map(|(_, restored)| restored.counters)
}

#[test]
fn damage_or_truncation_loses_only_what_follows() {
    let now = NOW + SECOND * 75;
    let engine = used_engine();
    let mut sound = saved(&engine, "rules: []", now);
    let header = sound.windows(9).position(|at| at == b"rules: []").expect("the rules") - 29;
    let complete = sound.len();
    sound.extend_from_slice(&[7; 40]); // a frame that was begun
    assert_eq!(counters_of(&sound, now), Ok(ALGORITHMS.len() as u64));
    for at in 0..sound.len() {
        let mut flipped = sound.clone();
        flipped[at] ^= 1 << (at % 8);
        let all = if at >= complete { ALGORITHMS.len() as u64 } else { 0 };
        for damaged in [&flipped[..], &sound[..at]] {
            match counters_of(damaged, now) {
                Ok(counters) => assert_eq!(counters, all, "at {at}"),
                Err(_) => assert!(at < header, "at {at}: {header}"),
            }
        }
    }
}

fn fixture_v5() -> Vec<u8> {
    include_bytes!("fixtures/snapshot-v5").to_vec()
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - 8);
    let mut hasher = SipHasher13::new();
    hasher.write(&bytes);
    bytes.extend(hasher.finish().to_le_bytes());
    bytes
}

/// Fingerprints depend on the processor; the fixture is from one with AES.
fn reads_fixture() -> bool {
    saved(&EngineCore::new(policy("")), "", NOW).windows(3).any(|at| at == b"aes")
}

#[test]
fn another_version_is_named_whatever_follows() {
    let mut other = fixture_v5();
    other[8] = 9;
    assert_eq!(rejected(&other), SavedStateError::Version(9));
    let message = rejected(&with_checksum(other)).to_string();
    assert_eq!(message, "format version 9 is not supported: this program reads versions 3 to 6");
}

#[test]
fn a_saved_state_of_version_5_is_read() {
    if !reads_fixture() {
        return;
    }
    let now = NOW + SECOND * 75;
    let rules = format!(
        "{}  - {{id: t, match: /t, key: user, limit: 1/d, track: true, ban: {{key: [user], after: 2, for: 1h}}}}\n",
        all_rules()
    );
    let former = |rules: &str| PolicySnapshot::from_yaml(rules).ok();
    let restored = EngineCore::restore(policy(&rules), EngineSetup::default(), &fixture_v5(), former, now);
    let (engine, restored) = restored.expect("the saved state is sound");
    assert_eq!((restored.counters, restored.bans, restored.tracked_keys), (15, 1, 2));
    assert_eq!((restored.end, restored.unused_bytes), (None, 0));
    assert_eq!(verdicts(&engine, now), verdicts(&used_engine(), now));
    assert_eq!(engine.check(&Hit::on("GET", "", "/t").user("banned"), now).reason, Reason::Ban);
    assert_eq!(engine.check(&Hit::on("GET", "", "/t").user("offender"), now).reason, Reason::Limit);
    assert_eq!(engine.check(&Hit::on("GET", "", "/t").user("offender"), now).reason, Reason::Ban);
}

#[test]
fn damage_to_a_saved_state_of_version_5_is_noticed() {
    let sound = fixture_v5();
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        rejected(&damaged);
        rejected(&sound[..at]);
    }
    rejected(&[sound.as_slice(), b"x"].concat());
}

#[test]
fn the_format_before_tracked_keys_is_read() {
    if !reads_fixture() {
        return;
    }
    let mut bytes = fixture_v5();
    let tracks = bytes.windows(9).rposition(|at| at == b"\x01\0\0\0\0\0\0\0t").expect("the tracked rule");
    bytes[8..16].copy_from_slice(&3u64.to_le_bytes());
    bytes.truncate(tracks - 8); // the number of rules comes before the length of an id
    bytes.extend([0; 8]);
    let (_, restored) = EngineCore::restore(
        policy(""),
        EngineSetup::default(),
        &with_checksum(bytes),
        |_| None,
        NOW + SECOND * 75,
    )
    .expect("the saved state is sound");
    assert_eq!((restored.counters, restored.tracked_keys), (15, 0));
}

/// A checksum does not prove that the contents are valid: an attacker who can write the file can compute one.
#[test]
fn nonsense_with_a_checksum_does_not_panic() {
    let rules = all_rules();
    let sound = fixture_v5();
    let start = sound.windows(5).rposition(|at| at == b"1h}}\n").expect("the end of the rules") + 5;
    for at in (start..sound.len() - 8).step_by(8) {
        for word in [0, 1, 5, 300, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let mut forged = sound.clone();
            forged[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            let now = NOW + SECOND * 80;
            let forged = with_checksum(forged);
            if let Ok((engine, _)) =
                EngineCore::restore(policy(&rules), EngineSetup::default(), &forged, |_| None, now)
            {
                saved(&engine, &rules, now);
            }
        }
    }
}

#[test]
fn tracked_keys_survive_for_as_long_as_they_are_kept() {
    let rules = "rules: [{id: r, key: user, limit: 2/d, track: {times: 2, keep: 1h}}, {id: later, limit: 9/d, track: true}]";
    let engine = EngineCore::new(policy(rules));
    for second in 0..3 {
        engine.check(&Hit::by("u"), NOW + SECOND * second);
    }
    let track = |engine: &EngineCore, rule: &str, key: Key, now: Time| {
        engine.key(rule, key, now).expect("they go together").track.expect("it tracks")
    };
    let user = || Key::parse("user:u").expect("a key");
    let bytes = saved(&engine, rules, NOW + SECOND * 3);
    let copy = restored(&bytes, rules, NOW + MINUTE);
    let seen = track(&copy, "r", user(), NOW + MINUTE);
    assert_eq!(seen, track(&engine, "r", user(), NOW + MINUTE));
    assert_eq!((seen.tries, seen.denials, seen.latest.len()), (3, 1, 2));
    assert_eq!(track(&copy, "r", user(), NOW + HOUR + MINUTE).tries, 0, "kept for an hour");

    // A rule that comes later, from a database, finds what was saved; one saved state hands it to the next.
    let without = "rules: [{id: r, key: user, limit: 2/d, track: {times: 2, keep: 1h}}]";
    let twice = restored(
        &saved(&restored(&bytes, without, NOW + MINUTE), without, NOW + MINUTE),
        rules,
        NOW + MINUTE,
    );
    assert_eq!(track(&twice, "later", Key::default(), NOW + MINUTE).tries, 3);
}
/// A saved state of a clock that was a year ahead denied its keys for a year.
#[test]
fn a_saved_state_of_the_future_denies_no_longer_than_its_limits() {
    let rules = all_rules();
    let future = NOW + 365 * 24 * HOUR;
    let engine = EngineCore::new(policy(&rules));
    let hit = |engine: &EngineCore, n: usize, now| {
        let target = format!("/r{n}");
        engine.check(&Hit::on("GET", "", &target).user("u"), now)
    };
    for _ in 0..20 {
        (0..ALGORITHMS.len()).for_each(|n| drop(hit(&engine, n, future)));
    }
    let engine = restored(&saved(&engine, &rules, future), &rules, NOW);
    for (n, algorithm) in ALGORITHMS.iter().enumerate() {
        let verdict = hit(&engine, n, NOW);
        let wait = verdict.limits().iter().filter_map(|limit| limit.retry_after()).max().unwrap_or_default();
        assert!(wait <= 5 * MINUTE, "{algorithm}: {wait:?}");
        assert!(hit(&engine, n, NOW + wait).allowed, "{algorithm}");
    }
}
