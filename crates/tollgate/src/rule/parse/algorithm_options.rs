//! The algorithm of a rule and the options that belong to it; options of other algorithms are rejected.

use std::time::Duration;

use crate::document::MapReader;
use crate::limit::{Levels, Refill, Release, Shape, WindowStart};
use crate::rule::OnExceed;
use crate::rule::parse::read_duration;
use crate::time::Unit;

#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    Gcra,
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingCompact,
    SlidingCounter,
    TieredWindow,
    Concurrency,
}

const NAMES: [(&str, AlgorithmName); 9] = [
    ("gcra", AlgorithmName::Gcra),
    ("token-bucket", AlgorithmName::TokenBucket),
    ("leaky-bucket", AlgorithmName::LeakyBucket),
    ("fixed-window", AlgorithmName::FixedWindow),
    ("sliding-log", AlgorithmName::SlidingLog),
    ("sliding-compact", AlgorithmName::SlidingCompact),
    ("sliding-counter", AlgorithmName::SlidingCounter),
    ("tiered-window", AlgorithmName::TieredWindow),
    ("concurrency", AlgorithmName::Concurrency),
];

#[derive(Clone, Copy)]
enum RefillName {
    Continuous,
    Tick,
    Calendar,
}

const REFILLS: [(&str, RefillName); 3] =
    [("continuous", RefillName::Continuous), ("tick", RefillName::Tick), ("calendar", RefillName::Calendar)];
const WINDOWS: [(&str, WindowStart); 2] =
    [("aligned", WindowStart::Aligned), ("first-hit", WindowStart::FirstHit)];
const ONE_SECOND: Duration = Duration::from_secs(1);

/// The shape of a rule's limits; `None` after a problem.
pub(super) struct AlgorithmOptions {
    name: AlgorithmName,
    shape: Option<Shape>,
}

impl AlgorithmOptions {
    pub(super) fn read(map: &mut MapReader<'_, '_>, on_exceed: Option<OnExceed>) -> AlgorithmOptions {
        let before = map.problems().count();
        let name = algorithm(map);
        let shape = Self::options(map, name, on_exceed);
        let sound = map.problems().count() == before;
        AlgorithmOptions { name, shape: shape.filter(|_| sound) }
    }

    /// An empty message means that the problem has been reported.
    pub(super) fn shape(&self) -> Result<Shape, String> {
        self.shape.ok_or_else(String::new)
    }

    pub(super) fn default_on_exceed(&self) -> OnExceed {
        if self.name == AlgorithmName::LeakyBucket { OnExceed::Hold } else { OnExceed::Reject }
    }

    fn options(
        map: &mut MapReader<'_, '_>,
        name: AlgorithmName,
        on_exceed: Option<OnExceed>,
    ) -> Option<Shape> {
        let bucket =
            matches!(name, AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket);
        let holds = name == AlgorithmName::LeakyBucket
            && !matches!(on_exceed, Some(OnExceed::Reject | OnExceed::Queue));
        if on_exceed == Some(OnExceed::Hold) && !holds {
            map.reject_map("on_exceed: hold is for leaky-bucket only");
        }
        only(map, "burst", bucket, "gcra, token-bucket and leaky-bucket");
        only(map, "refill", name == AlgorithmName::TokenBucket, "token-bucket");
        only(map, "window", name == AlgorithmName::FixedWindow, "fixed-window");
        only(map, "resolution", name == AlgorithmName::SlidingCompact, "sliding-compact");
        only(map, "levels", name == AlgorithmName::TieredWindow, "tiered-window");
        only(map, "max_wait", holds, "a leaky-bucket that holds");
        only(map, "hold_after", holds, "a leaky-bucket that holds");
        let burst = map.optional_u64("burst");
        let refill = map.optional_choice("refill", &REFILLS).unwrap_or(RefillName::Continuous);
        only(map, "tick", matches!(refill, RefillName::Tick), "refill: tick");
        let tick = read_duration(map, "tick").unwrap_or(ONE_SECOND);
        let max_wait = read_duration(map, "max_wait");
        let after = map.optional_u64("hold_after").unwrap_or(0);
        let start = map.optional_choice("window", &WINDOWS).unwrap_or(WindowStart::Aligned);
        let resolution = read_duration(map, "resolution").unwrap_or(ONE_SECOND);
        let levels = levels(map)?;
        let refill = match refill {
            RefillName::Continuous => Refill::Continuous,
            RefillName::Tick => Refill::Tick(tick),
            RefillName::Calendar => Refill::Calendar,
        };
        let release = if holds { Release::Hold { max_wait, after } } else { Release::AtOnce };
        Some(match name {
            AlgorithmName::Gcra => Shape::Gcra { burst },
            AlgorithmName::TokenBucket => Shape::TokenBucket { burst, refill },
            AlgorithmName::LeakyBucket => Shape::LeakyBucket { burst, release },
            AlgorithmName::FixedWindow => Shape::FixedWindow { start },
            AlgorithmName::SlidingLog => Shape::SlidingLog,
            AlgorithmName::SlidingCompact => Shape::SlidingCompact { resolution },
            AlgorithmName::SlidingCounter => Shape::SlidingCounter,
            AlgorithmName::TieredWindow => Shape::TieredWindow { levels },
            AlgorithmName::Concurrency => Shape::Concurrency,
        })
    }
}

fn algorithm(map: &mut MapReader<'_, '_>) -> AlgorithmName {
    map.optional_choice("algorithm", &NAMES).unwrap_or(AlgorithmName::Gcra)
}

fn only(map: &mut MapReader<'_, '_>, option: &'static str, fits: bool, of: &str) {
    if let Some(node) = map.optional(option).filter(|_| !fits) {
        map.reject(option, node, format!("'{option}' is for {of} only"));
    }
}

fn levels(map: &mut MapReader<'_, '_>) -> Option<Levels> {
    let Some(nodes) = map.one_or_many("levels") else { return Some(Levels::SMH) };
    let units: Option<Vec<Unit>> = nodes.iter().map(|node| node.as_str().and_then(Unit::parse)).collect();
    let levels = units.and_then(|units| Levels::new(&units).ok());
    if let (None, Some(node)) = (levels, nodes.first()) {
        map.reject("levels", node, "expected some of s, m, h, d, each once, finest first");
    } else if nodes.is_empty() {
        map.reject_map("'levels' is empty");
    }
    levels
}
