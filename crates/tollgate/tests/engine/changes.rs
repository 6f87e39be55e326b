//! Changes of the policy: which states are kept, and which start fresh.

use super::*;

#[test]
fn a_changed_limit_keeps_what_its_keys_have_used() {
    for algorithm in ALGORITHMS {
        let rule = |count| policy(&format!("rules: [{{id: r, key: user, limit: {count}/m, {algorithm}}}]"));
        let engine = EngineCore::new(rule(5));
        assert_eq!(allowed(&engine, &Hit::by("u"), 9, NOW), 5, "{algorithm}");
        engine.apply(rule(50), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [45], "{algorithm}: five of fifty used");
        engine.apply(rule(7), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [2], "{algorithm}: five of seven used");
        assert_eq!(allowed(&engine, &Hit::by("u"), 9, NOW), 2, "{algorithm}");
        engine.apply(rule(5), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [0], "{algorithm}: seven of five used");
        engine.apply(rule(100), NOW);
        assert_eq!(allowed(&engine, &Hit::by("u"), 1, NOW), 1, "{algorithm}");
        engine.apply(rule(100), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [92], "{algorithm}: eight of a hundred used");
        assert_eq!(left(&engine, Hit::by("v"), NOW), [100], "{algorithm}");
    }
}

#[test]
fn an_override_that_comes_or_goes_keeps_what_its_key_has_used() {
    for algorithm in ALGORITHMS {
        let rule = |overrides| {
            policy(&format!(
                "rules: [{{id: r, key: user, limit: 5/m, {algorithm}, overrides: [{overrides}]}}]"
            ))
        };
        let engine = EngineCore::new(rule(""));
        allowed(&engine, &Hit::by("u"), 4, NOW);
        engine.apply(rule("{user: u, limit: 50/m}"), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [46], "{algorithm}");
        assert!(engine.check(&Hit::by("u"), NOW).allowed);
        engine.apply(rule(""), NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [0], "{algorithm}");
    }
}

#[test]
fn a_changed_algorithm_or_window_starts_fresh() {
    let rule = |options| policy(&format!("rules: [{{id: r, {options}}}]"));
    let engine = EngineCore::new(rule("limit: 5/m"));
    allowed(&engine, &Hit::by("u"), 5, NOW);
    engine.apply(rule("limit: 5/m, algorithm: sliding-log"), NOW);
    assert_eq!(left(&engine, Hit::by("u"), NOW), [5]);
    allowed(&engine, &Hit::by("u"), 5, NOW);
    engine.apply(rule("limit: 5/h, algorithm: sliding-log"), NOW);
    assert_eq!(left(&engine, Hit::by("u"), NOW), [5]);
}

#[test]
fn an_edit_beside_the_limit_keeps_counters_records_and_tracks() {
    let engine = engine("rules: [{id: r, key: user, limit: 5/m, track: true}]");
    allowed(&engine, &Hit::by("u"), 6, NOW);
    engine.apply(
        policy("rules: [{id: other, limit: 9/m}, {id: r, key: user, limit: 5/m, track: true, mode: shadow}]"),
        NOW,
    );
    assert_eq!(left(&engine, Hit::by("u"), NOW), [9, 0]);
    let report = engine.key("r", key("user:u"), NOW).expect("they go together");
    assert_eq!(report.track.map(|track| (track.tries, track.denials)), Some((6, 1)));
    assert_eq!(engine.policy().rule("r").expect("it is there").counts().denied, 1);
}

#[test]
fn generations_follow_each_other_and_verdicts_name_theirs() {
    let engine = engine("rules: []");
    assert_eq!(engine.check(&Hit::by("u"), NOW).id.generation, 1);
    assert_eq!(engine.apply(policy("rules: []"), NOW), (1, 2));
    assert_eq!(engine.apply(policy("rules: []"), NOW), (2, 3));
    let first = engine.check(&Hit::by("u"), NOW).id;
    let second = engine.check(&Hit::by("u"), NOW).id;
    assert_eq!((first.generation, engine.policy().generation()), (3, 3));
    assert_eq!((first.node, second.sequence), (second.node, first.sequence + 1));
}

#[test]
fn policies_applied_at_once_follow_each_other() {
    let engine = engine("rules: []");
    let mut generations: Vec<_> = std::thread::scope(|scope| {
        let apply = || (0..50).map(|_| engine.apply(policy("rules: []"), NOW)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(apply)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect()
    });
    generations.sort_unstable();
    assert_eq!(generations, (1..=200).map(|n| (n, n + 1)).collect::<Vec<_>>());
}

/// A request planned under 5/h charged the counter that the state had just left for that of 6/h: 11 passed.
#[test]
fn changes_under_load_admit_no_more_than_the_larger_limit() {
    const USERS: usize = 50;
    const MAX_AHEAD: usize = 1 << 20;
    let users: Vec<String> = (0..USERS).map(|n| format!("{n}")).collect();
    for algorithm in ["algorithm: gcra", "algorithm: sliding-log"] {
        let rule = |count| policy(&format!("rules: [{{id: r, key: user, limit: {count}/h, {algorithm}}}]"));
        let mut ahead = 2_000;
        let passed = loop {
            let engine = EngineCore::new(rule(5));
            // A batch is planned under the policy at its start. The limit changes while it is at its first hits.
            let first = std::iter::repeat_n("first", ahead);
            let batch: Vec<_> = first.chain(users.iter().flat_map(|user| [user.as_str(); 5])).collect();
            let batch: Vec<_> = batch.into_iter().map(Hit::by).collect();
            let (mut passed, is_late) = std::thread::scope(|scope| {
                let thread = scope.spawn(|| engine.check_batch(&batch, NOW));
                while left(&engine, Hit::by("first"), NOW) == [5] {
                    std::thread::yield_now();
                }
                engine.apply(rule(6), NOW);
                let under_six: Vec<_> =
                    users.iter().map(|user| allowed(&engine, &Hit::by(user), 6, NOW)).collect();
                engine.apply(rule(5), NOW);
                let is_late = thread.is_finished();
                let verdicts = thread.join().expect("no thread panics");
                let in_batch = verdicts[ahead..].chunks(5).map(|hits| hits.iter().filter(|hit| hit.allowed));
                (
                    under_six.into_iter().zip(in_batch).map(|(n, hits)| n + hits.count()).collect::<Vec<_>>(),
                    is_late,
                )
            });
            if !is_late || ahead >= MAX_AHEAD {
                users
                    .iter()
                    .zip(&mut passed)
                    .for_each(|(user, passed)| *passed += allowed(&engine, &Hit::by(user), 6, NOW));
                break passed;
            }
            ahead *= 4; // the batch was faster than the change
        };
        assert_eq!(passed, [6; USERS], "{algorithm}");
    }
}
