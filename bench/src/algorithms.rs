//! Every one of the eight algorithms, with a million strings.

use std::time::Duration;

use tollgate::internal::Shape;
use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};

use crate::contestant::Allowance;
use crate::decisions::{THREADS, compare};
use crate::effort::Effort;
use crate::entrant::{Manner, enter_built, prepare};
use crate::keys::Draws;
use crate::ours::Ours;
use crate::score::{Scores, short};
use crate::table::Table;

pub const LINE: &str = "algorithms";
/// The algorithms that keep more than a word for each key.
pub const WIDE: [&str; 3] = ["sliding-log", "sliding-compact", "tiered-window"];

pub fn shapes() -> [Shape; 8] {
    [
        Shape::GCRA,
        Shape::TokenBucket { burst: None, refill: Refill::Continuous },
        Shape::LeakyBucket { burst: None, release: Release::AtOnce },
        Shape::FixedWindow { start: WindowStart::Aligned },
        Shape::SlidingLog,
        Shape::SlidingCompact { resolution: Duration::from_secs(60) },
        Shape::SlidingCounter,
        Shape::TieredWindow { levels: Levels::SMH },
    ]
}

/// A log needs memory for as many hits as its limit allows: 155 GB for a billion.
fn per_day(shape: Shape) -> u32 {
    match shape {
        Shape::SlidingLog => 10_000_000,
        _ => Allowance::Ample.per_day(),
    }
}

/// Windows remember a day; a log keeps every unit.
fn first_cost(shape: Shape) -> u32 {
    match shape {
        Shape::Gcra { .. } | Shape::TokenBucket { .. } | Shape::LeakyBucket { .. } => {
            Allowance::Ample.first_cost()
        }
        _ => 1,
    }
}

pub fn measure(effort: &Effort, scores: &mut Scores) {
    eprintln!("measuring the algorithms");
    let keys = effort.keys(1_000_000);
    let entered = |shape: Shape| {
        move || {
            let ours = Ours::with_shape(per_day(shape), shape);
            (
                shape.name(),
                enter_built::<String, _>(shape.name(), ours, Allowance::Ample, first_cost(shape), keys),
            )
        }
    };
    let entrants = prepare(shapes().into_iter().map(entered).collect());
    let all: Vec<_> = entrants.iter().collect();
    compare(LINE, &all, &Draws::uniform(keys, effort.layout), Manner::Single, effort, scores);
}

pub fn print(scores: &Scores) {
    let mut table = Table::new(
        "Algorithms: strings, 1 M uniform, allowed, ns",
        ["", "1 thread", "2 threads", "1 thread, × gcra"],
    );
    for shape in shapes() {
        let time = |threads| scores.get(LINE, shape.name(), threads).unwrap_or(f64::NAN);
        let [one, two] = THREADS.map(time);
        let gcra = scores.get(LINE, Shape::GCRA.name(), 1).unwrap_or(f64::NAN);
        table.row([shape.name().to_owned(), short(one), short(two), format!("{:.2}", one / gcra)]);
    }
    table.print();
}
