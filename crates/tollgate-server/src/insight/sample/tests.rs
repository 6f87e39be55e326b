//! The sample as threads record into it.

use std::collections::{HashMap, HashSet};

use super::*;

const START: Time = Time::from_secs(1_800_000_000);

/// As a thread does: into a batch, which is merged when it is full.
struct Recorder {
    sample: ClientSample,
    batch: SampleBatch,
}

impl Recorder {
    fn new() -> Recorder {
        Recorder { sample: ClientSample::new(START), batch: SampleBatch::default() }
    }

    fn record(&mut self, hit: &Hit<'_>, at: Time) {
        if let Some(client) = self.sample.client(hit) {
            self.batch.record(client, hit, at);
        }
        if self.batch.is_full() {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.sample.merge(&mut self.batch);
        self.batch.clear();
    }

    fn copy(&mut self) -> Sampled {
        self.merge();
        let bytes = lock(&self.sample.generations).current.bytes();
        assert!(bytes <= MAX_GENERATION_BYTES, "{bytes}");
        self.sample.copy()
    }
}

fn clients(sampled: &Sampled) -> usize {
    let client = |request: &SampledRequest| format!("{:?}", tollgate::internal::hit::client(&request.hit()));
    sampled.requests.iter().map(client).collect::<HashSet<_>>().len()
}

#[test]
fn every_request_of_a_sampled_client_is_kept_and_memory_is_bounded() {
    let mut sample = Recorder::new();
    for n in 0..200_000u32 {
        let user = format!("user-{}", n % 20_000);
        sample.record(&Hit::on("GET", "h", "/").user(&*user), START);
    }
    let sampled = sample.copy();
    assert!(sampled.one_in > 1 && !sampled.requests.is_empty(), "one in {}", sampled.one_in);
    assert_eq!(sampled.requests.len(), 10 * clients(&sampled));
    let expected = 20_000 / sampled.one_in as usize;
    assert!((expected / 2..expected * 2).contains(&clients(&sampled)), "{}", clients(&sampled));
}

#[test]
fn a_hundred_thousand_requests_keep_their_times_and_costs() {
    const CLIENTS: u64 = 20;
    const EACH: u64 = 5_000;
    let mut sample = Recorder::new();
    let users: Vec<String> = (0..CLIENTS).map(|n| format!("user-{n}")).collect();
    let at = |n: u64| START + std::time::Duration::from_micros(n * 100_000 + 7);
    for n in 0..EACH {
        users.iter().for_each(|user| sample.record(&Hit::on("GET", "h", "/").user(&**user).cost(n), at(n)));
    }
    let sampled = sample.copy();
    assert_eq!((sampled.one_in, sampled.merged), (1, 0));
    let kept: Vec<(Time, u64)> =
        sampled.requests.iter().map(|one| (one.at, tollgate::internal::hit::cost(&one.hit()))).collect();
    let sent: Vec<(Time, u64)> = (0..EACH).flat_map(|n| vec![(at(n), n); CLIENTS as usize]).collect();
    assert!(kept == sent, "{} of {}", kept.len(), sent.len());
}

#[test]
fn a_client_that_sends_nearly_everything_displaces_no_other_and_keeps_its_rate() {
    const PER_SECOND: u64 = 1_000;
    let mut sample = Recorder::new();
    let attacker = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
    let users: Vec<String> = (0..10).map(|n| format!("user-{n}")).collect();
    for second in 0..GENERATION_SECS / 2 {
        let at = Time::from_secs(START.secs() + second);
        users.iter().for_each(|user| sample.record(&Hit::on("GET", "h", "/").user(&**user), at));
        (0..PER_SECOND).for_each(|_| sample.record(&attacker, at));
    }
    let sampled = sample.copy();
    assert_eq!((sampled.one_in, clients(&sampled)), (1, users.len() + 1));
    let last = Time::from_secs(START.secs() + GENERATION_SECS / 2 - 1);
    let in_last = sampled.each().filter(|request| request.at == last).count() as u64;
    assert_eq!(in_last, PER_SECOND + users.len() as u64);
    assert_eq!(sampled.each().count() as u64, (PER_SECOND + users.len() as u64) * GENERATION_SECS / 2);
    assert!(sampled.merged > 0 && sampled.substituted == 0);
    let notes = sampled.notes();
    assert!(notes.len() == 1 && notes[0].contains(','), "{notes:?}");
}

/// A busy client was replayed with copies of the first request of each second: the rule of one path got all of them.
#[test]
fn a_busy_client_with_two_paths_and_two_costs_keeps_the_counts_of_each() {
    const PER_SECOND: u64 = 1_000;
    const SECONDS: u64 = 120;
    let mut sample = Recorder::new();
    for n in 0..PER_SECOND * SECONDS {
        let path = if n % 3 == 0 { "/login" } else { "/search" };
        let hit = Hit::on("GET", "h", path).ip([192, 0, 2, 1].into()).cost(1 + n % 2);
        sample.record(&hit, START + std::time::Duration::from_millis(n));
    }
    let sampled = sample.copy();
    let mut counts: HashMap<(u64, String, u64), u64> = HashMap::new();
    for request in sampled.each() {
        let hit = request.hit();
        let path = tollgate::internal::hit::target(&hit).path().to_owned();
        *counts.entry((request.at.secs(), path, tollgate::internal::hit::cost(&hit))).or_default() += 1;
    }
    let mut expected: HashMap<(u64, String, u64), u64> = HashMap::new();
    for n in 0..PER_SECOND * SECONDS {
        let path = if n % 3 == 0 { "/login" } else { "/search" };
        *expected.entry((START.secs() + n / PER_SECOND, path.to_owned(), 1 + n % 2)).or_default() += 1;
    }
    assert_eq!(counts, expected);
    assert!(sampled.merged > 0 && sampled.substituted == 0);
}

#[test]
fn a_flood_of_paths_of_one_client_displaces_no_other_and_says_what_is_replaced() {
    let mut sample = Recorder::new();
    for second in 0..GENERATION_SECS {
        let at = Time::from_secs(START.secs() + second);
        sample.record(&Hit::on("GET", "h", "/").user("ann"), at);
        for n in 0..100 {
            let path = format!("/{second}-{n}");
            sample.record(&Hit::on("GET", "h", &path).ip([192, 0, 2, 1].into()), at);
        }
    }
    let sampled = sample.copy();
    assert_eq!((sampled.one_in, clients(&sampled)), (1, 2));
    assert_eq!(sampled.each().count() as u64, 101 * GENERATION_SECS);
    assert!(sampled.substituted > 0 && sampled.notes().len() == 2);
}

#[test]
fn a_replay_is_bounded() {
    let mut sample = Recorder::new();
    let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
    (0..5_000).for_each(|_| sample.record(&hit, START));
    sample.merge();
    lock(&sample.sample.generations).current.set_counts(u32::MAX);
    let replayed = sample.copy().each().count() as u64;
    assert!((MAX_REPLAYED / 2..=MAX_REPLAYED).contains(&replayed), "{replayed}");
}

#[test]
fn a_generation_ends_after_ten_minutes() {
    let mut sample = Recorder::new();
    let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
    let at = |generation: u64| Time::from_secs(START.secs() + generation * GENERATION_SECS);
    sample.record(&hit, START);
    sample.merge();
    sample.sample.tick(at(1));
    sample.record(&hit, at(1));
    assert_eq!(sample.copy().requests.len(), 2);
    sample.sample.tick(at(2));
    assert_eq!(sample.copy().requests.len(), 1);
}

#[test]
fn requests_of_64_kib_are_not_kept() {
    let mut sample = Recorder::new();
    let long = "x".repeat(64 << 10);
    sample.record(&Hit::by(&long), START);
    assert!(sample.copy().requests.is_empty());
}

#[test]
fn numbers_have_a_comma_after_each_three_digits() {
    for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(grouped(number), text);
    }
}
