//! Tests of the state file over many writes.

use std::sync::atomic::{AtomicU32, Ordering};

use tollgate::internal::{EngineSetup, PolicySnapshot};
use tollgate::{Clock, Hit};

use super::*;
use crate::assemble;
use crate::config::Config;
use crate::state::saver::{self, Saving};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-state-{}-{n}", std::process::id()));
        fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("tollgate.snapshot")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn gate(rules: &str) -> Gate {
    let mut config = Config::parse(rules, Path::new("")).expect("a valid configuration");
    assemble::gate(&mut config, rules.to_owned(), None).expect("a gate")
}

fn charge(gate: &Gate, users: impl Iterator<Item = u64>) {
    let users: Vec<_> = users.map(|user| user.to_string()).collect();
    let hits: Vec<_> = users.iter().map(|user| Hit::by(user.as_str())).collect();
    gate.engine.check_batch(&hits, gate.now());
}

/// An engine that was restored from the file.
fn restored(folder: &Folder, rules: &str, now: Time) -> EngineCore {
    let policy = PolicySnapshot::from_yaml(rules).expect("valid rules");
    let bytes = fs::read(folder.file()).expect("it");
    let restored = EngineCore::restore(policy, EngineSetup::default(), &bytes, |_| None, now);
    let (engine, restored) = restored.expect("the file is sound");
    assert_eq!(restored.unused_bytes, 0);
    engine
}

fn left(engine: &EngineCore, user: u64, now: Time) -> u64 {
    engine.peek(&Hit::by(&user.to_string()), now).limits()[0].remaining()
}

fn image_bytes(gate: &Gate) -> u64 {
    let mut image = Vec::new();
    gate.engine.save(&mut image, "", gate.now()).expect("memory");
    image.len() as u64
}

#[test]
fn the_file_is_at_most_twice_as_long_as_the_state_and_complete_after_every_write() {
    const RULES: &str = "rules: [{ id: r, key: user, limit: 1000000/y, algorithm: fixed-window }]";
    const USERS: u64 = 40_000;
    let folder = Folder::new();
    let gate = gate(RULES);
    let mut log = StateLog::new(folder.file(), None);
    charge(&gate, 0..USERS);
    log.write(&gate).expect("there is room");
    let first = log.bytes();
    let mut files = 0;
    let mut had_next = 0;
    let live = image_bytes(&gate);
    assert!(live > MIN_BOUND / 2);
    for round in 0..60 {
        // Mostly few keys, sometimes nearly all.
        let changed = if round % 20 == 19 { USERS } else { 2_000 };
        charge(&gate, (0..changed).map(|n| (n * 7 + round * 1_009) % USERS));
        let before = log.bytes();
        log.write(&gate).expect("there is room");
        files += u64::from(log.bytes() < before);
        had_next += u64::from(log.next.is_some());
        let length = fs::metadata(folder.file()).expect("it is there").len();
        assert_eq!(length, log.bytes());
        assert!(length <= 2 * live + live / 50, "{length} bytes for {live} in round {round}");
        if round % 10 == 9 {
            let now = gate.now();
            let copy = restored(&folder, RULES, now);
            for user in (0..USERS).step_by(997) {
                assert_eq!(
                    left(&copy, user, now),
                    left(&gate.engine, user, now),
                    "user {user}, round {round}"
                );
            }
        }
    }
    assert!(
        files >= 3 && had_next >= 3,
        "{files} new files, {had_next} writes beside one, {first} bytes at first"
    );
}

#[test]
fn a_state_that_expires_leaves_the_file() {
    const RULES: &str = "rules: [{ id: r, key: user, limit: 1/h }]";
    let folder = Folder::new();
    let gate = gate(RULES);
    let mut log = StateLog::new(folder.file(), None);
    charge(&gate, 0..60_000);
    log.write(&gate).expect("there is room");
    assert!(log.bytes() > MIN_BOUND, "{} bytes: a shorter file is not worth replacing", log.bytes());
    gate.clock.advance(Duration::from_secs(2 * 3600));
    let writes = (0..1_000).take_while(|_| {
        log.write(&gate).expect("there is room");
        log.bytes() > 10_000
    });
    let writes = writes.count();
    assert!(writes < 1_000, "{} bytes for expired keys after {writes} writes", log.bytes());
}

#[test]
fn a_folder_that_is_gone_is_an_error_and_back_again_all_is_written() {
    const RULES: &str = "rules: [{ id: r, key: user, limit: 1000/y }]";
    let folder = Folder::new();
    let gate = gate(RULES);
    let mut log = StateLog::new(folder.0.join("gone/tollgate.snapshot"), None);
    for _ in 0..3 {
        charge(&gate, 0..10);
        log.write(&gate).expect_err("there is no folder");
    }
    fs::create_dir(folder.0.join("gone")).expect("a folder");
    log.write(&gate).expect("there is a folder");
    fs::rename(folder.0.join("gone/tollgate.snapshot"), folder.file()).expect("it was written");
    let now = Clock::new().now();
    assert_eq!(left(&restored(&folder, RULES, now), 5, now), 997);
}

#[test]
fn the_file_has_what_was_charged_before_the_reported_time() {
    const RULES: &str = "rules: [{ id: r, key: user, limit: 1000000/y, algorithm: fixed-window }]";
    const EVERY: Duration = Duration::from_secs(1);
    let folder = Folder::new();
    let gate = gate(RULES);
    let mut log = StateLog::new(folder.file(), None);
    let saving = Saving::new(EVERY);
    let mut charged = Vec::new();
    for step in 0..60 {
        gate.clock.advance(EVERY / 6);
        charge(&gate, 0..1);
        charged.push(gate.now());
        if step % 6 == 0 {
            saver::write(&mut log, &gate, &saving);
        }
        let saved_at = saving.status().saved_at.expect("it was written");
        let used = 1_000_000 - left(&restored(&folder, RULES, gate.now()), 0, gate.now());
        let must = charged.iter().filter(|at| **at < saved_at).count() as u64;
        assert!(used >= must, "{used} of {must} charges before {saved_at:?}");
    }
}
