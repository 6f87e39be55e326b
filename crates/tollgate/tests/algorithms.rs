//! Every algorithm against its definition, over random histories.

use std::time::Duration;

mod history;
mod model;

use history::{Abuse, Family, Lag, Run, abuses, histories, lags};
use proptest::prelude::*;
use tollgate::internal::algorithm::{Algorithm, Quota};
use tollgate::internal::limit::{Levels, Limit, Refill, Release, Shape, WindowStart};
use tollgate::internal::time::Time;

proptest! {
    #[test]
    fn gcra_answers_as_defined(history in histories(Family::Gcra)) {
        Run::check(&history);
    }

    #[test]
    fn a_token_bucket_answers_as_defined(history in histories(Family::TokenBucket)) {
        Run::check(&history);
    }

    #[test]
    fn a_leaky_bucket_answers_as_defined(history in histories(Family::LeakyBucket)) {
        Run::check(&history);
    }

    #[test]
    fn a_fixed_window_answers_as_defined(history in histories(Family::FixedWindow)) {
        Run::check(&history);
    }

    #[test]
    fn a_sliding_log_answers_as_defined(history in histories(Family::SlidingLog)) {
        Run::check(&history);
    }

    #[test]
    fn a_compacted_window_answers_as_defined(history in histories(Family::SlidingCompact)) {
        Run::check(&history);
    }

    #[test]
    fn a_sliding_counter_answers_as_defined(history in histories(Family::SlidingCounter)) {
        Run::check(&history);
    }

    #[test]
    fn a_tiered_window_answers_as_defined(history in histories(Family::TieredWindow)) {
        Run::check(&history);
    }

    #[test]
    fn permits_are_counted_as_defined(history in histories(Family::Concurrency)) {
        Run::check(&history);
    }

    #[test]
    fn a_clock_a_little_behind_is_given_no_more_and_resets_nothing(lag in lags()) {
        Lag::check(&lag);
    }

    #[test]
    fn no_time_and_no_cost_overflows(abuse in abuses()) {
        Abuse::check(&abuse);
    }
}

#[test]
fn five_of_five_used_is_five_of_fifty_used() {
    let bucket = |refill| Shape::TokenBucket { burst: None, refill };
    let leaky = |release| Shape::LeakyBucket { burst: None, release };
    let second = Duration::from_secs(1);
    let shapes = [
        Shape::GCRA,
        bucket(Refill::Continuous),
        bucket(Refill::Tick(second)),
        bucket(Refill::Calendar),
        leaky(Release::AtOnce),
        leaky(Release::HOLD),
        leaky(Release::Hold { max_wait: Some(Duration::from_secs(600)), after: 3 }),
        Shape::FixedWindow { start: WindowStart::Aligned },
        Shape::FixedWindow { start: WindowStart::FirstHit },
        Shape::SlidingLog,
        Shape::SlidingCompact { resolution: second },
        Shape::SlidingCounter,
        Shape::TieredWindow { levels: Levels::SMH },
        Shape::Concurrency,
    ];
    let now = Time::from_secs(1_800_000_000);
    for shape in shapes {
        let quota = |rate: &str| {
            Quota::new(&Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit"))
        };
        let five = quota("5/m");
        let fifty = quota("50/m");
        let mut state = five.fresh();
        five.charge(&mut state, now, 5);
        assert!(!five.decide(&state, now, 1).is_allowed(), "{shape:?}");
        let state = fifty.adopt(&five, state, now);
        assert_eq!((fifty.used(&state, now), fifty.decide(&state, now, 1).left), (5, 45), "{shape:?}");
        let state = five.adopt(&fifty, state, now);
        assert_eq!((five.used(&state, now), five.decide(&state, now, 1).left), (5, 0), "{shape:?}");
    }
}
