//! The steps of a history: an idle time, then an operation. Both are expressed relative to the limit
//! (`what is left, and one more`), so that histories of every limit reach its edges.

use proptest::prelude::*;
use proptest::sample::Index;

use super::{Case, Family};

/// Instants stay before this (2099), so that every wait ends before the horizon of the library.
pub const LAST_NS: u64 = 4_070_908_800_000_000_000;

#[derive(Clone, Debug)]
pub struct History {
    pub case: Case,
    pub start_ns: u64,
    /// Denied hits are counted too.
    pub count_denied: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub idle: Idle,
    pub action: Action,
}

#[derive(Clone, Copy, Debug)]
pub enum Idle {
    /// The clock stands still.
    None,
    Nanos(u64),
    /// Thousandths of a period, and some nanoseconds.
    Part(u64, u64),
    /// To the retry time of the last denial, or a nanosecond beside it.
    Retry(Beside),
    /// To the next boundary of the calendar.
    Calendar(Beside),
    /// To the next multiple of the period.
    Window(Beside),
    /// To the next step, tick or second.
    Step(Beside),
    /// To when the state equals one never seen.
    Fresh(Beside),
}

#[derive(Clone, Copy, Debug)]
pub enum Beside {
    Before,
    At,
    After,
}

impl Beside {
    pub fn of(self, instant: u64) -> u64 {
        match self {
            Beside::Before => instant.saturating_sub(1),
            Beside::At => instant,
            Beside::After => instant.saturating_add(1),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Action {
    Hit(Cost),
    Peek(Cost),
    /// Gives back so many thousandths of an earlier hit.
    Refund(Index, u64),
    Owe(Cost),
    Adopt(Index),
}

#[derive(Clone, Copy, Debug)]
pub enum Cost {
    Exactly(u64),
    /// Thousandths of the capacity.
    Part(u64),
    Left,
    OneMoreThanLeft,
    Capacity,
    OneMoreThanCapacity,
    Largest,
}

impl Cost {
    pub fn resolve(self, left: u64, capacity: u64) -> u64 {
        match self {
            Cost::Exactly(cost) => cost,
            Cost::Part(part) => (u128::from(capacity) * u128::from(part) / 1000) as u64,
            Cost::Left => left,
            Cost::OneMoreThanLeft => left + 1,
            Cost::Capacity => capacity,
            Cost::OneMoreThanCapacity => capacity + 1,
            Cost::Largest => u64::MAX,
        }
    }
}

pub fn histories(family: Family) -> impl Strategy<Value = History> {
    const MAX_STEPS: usize = 60;
    let steps = prop_oneof![
        3 => prop::collection::vec(step(false), 1..MAX_STEPS),
        1 => prop::collection::vec(step(true), 1..MAX_STEPS),
    ];
    (family.cases(), starts(), prop::bool::weighted(0.2), steps)
        .prop_map(|(case, start_ns, count_denied, steps)| History { case, start_ns, count_denied, steps })
}

fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => 0..5_000_000_000u64,
        6 => 1_700_000_000_000_000_000..2_000_000_000_000_000_000u64,
        1 => 2_400_000_000_000_000_000..2_500_000_000_000_000_000u64,
    ]
}

fn step(with_debts: bool) -> impl Strategy<Value = Step> {
    let debts = if with_debts { 2 } else { 0 };
    let action = prop_oneof![
        12 => cost().prop_map(Action::Hit),
        2 => cost().prop_map(Action::Peek),
        4 => (any::<Index>(), part()).prop_map(|(which, part)| Action::Refund(which, part)),
        1 => any::<Index>().prop_map(Action::Adopt),
        debts => cost().prop_map(Action::Owe),
    ];
    (idle(), action).prop_map(|(idle, action)| Step { idle, action })
}

fn part() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1000), 0..=1000u64]
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        1 => Just(Cost::Exactly(0)),
        6 => Just(Cost::Exactly(1)),
        3 => (2..8u64).prop_map(Cost::Exactly),
        4 => (0..=1000u64).prop_map(Cost::Part),
        4 => Just(Cost::Left),
        3 => Just(Cost::OneMoreThanLeft),
        1 => Just(Cost::Capacity),
        1 => Just(Cost::OneMoreThanCapacity),
        1 => Just(Cost::Largest),
    ]
}

fn idle() -> impl Strategy<Value = Idle> {
    let beside = || prop_oneof![Just(Beside::Before), Just(Beside::At), Just(Beside::After)];
    prop_oneof![
        6 => Just(Idle::None),
        2 => (1..4u64).prop_map(Idle::Nanos),
        2 => (0..1_000_000_000u64).prop_map(Idle::Nanos),
        4 => (0..400u64, 0..1000u64).prop_map(|(part, nanos)| Idle::Part(part, nanos)),
        1 => (400..4_000u64, 0..1000u64).prop_map(|(part, nanos)| Idle::Part(part, nanos)),
        3 => beside().prop_map(Idle::Retry),
        1 => beside().prop_map(Idle::Calendar),
        1 => beside().prop_map(Idle::Window),
        1 => beside().prop_map(Idle::Step),
        1 => beside().prop_map(Idle::Fresh),
    ]
}
