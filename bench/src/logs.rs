//! Exact logs: resident memory of users who are at their limit of 500 an hour.
//!
//! Measured in a process of its own, as growth is.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::{Limit, Shape};

use crate::effort::Effort;
use crate::growth::{output_of_child, resident_bytes};
use crate::keys::Random;
use crate::roster;
use crate::score::Scores;

/// The first argument of such a process; the number of users follows.
pub const CHILD: &str = "--logs";
pub const LINE: &str = "bytes a user, exact log at its limit of 500/h";
/// Of those that a million would be: memory is in proportion, and time is too.
const USERS: usize = 20_000;
/// The hits of an hour and a bit, evenly spread with some jitter.
const HITS: u64 = 540;
const APART_US: u64 = 7_000_000;

pub fn measure(effort: &Effort, scores: &mut Scores) {
    let users = effort.keys(USERS);
    eprintln!("filling the logs of {users} users");
    let bytes = output_of_child(&[CHILD, &users.to_string()]);
    scores.put(LINE, roster::OURS, 1, bytes[0]);
}

pub fn run_child(users: usize) {
    const CAP_BYTES: usize = 8 << 30;
    let before = resident_bytes();
    let limit = Limit::new("500/h".parse().expect("a rate"), Shape::SlidingLog).expect("a limit");
    let limiter = tollgate::internal::limiter::with_limit(&limit, CAP_BYTES).expect("memory for every key");
    let mut random = Random::new(5);
    for hit in 0..HITS {
        for user in 0..users as u64 {
            let at = hit * APART_US + random.below(APART_US as usize) as u64;
            limiter.check_at(&user, Time::from_secs(1_800_000_000) + Duration::from_micros(at));
        }
    }
    println!("{}", resident_bytes().saturating_sub(before) as f64 / users as f64);
}
