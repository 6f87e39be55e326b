//! The whole engine, from a hit to a verdict, next to limitador's check-and-update.

use crate::contestant::Allowance;
use crate::decisions::compare;
use crate::effort::Effort;
use crate::entrant::{Entrant, Manner, enter, prepare};
use crate::keys::Draws;
use crate::ours::{OurEngine, Ours};
use crate::rival::Limitador;
use crate::roster::{LIMITADOR, OURS};
use crate::score::{Scores, short};
use crate::table::Table;

pub const LINE: &str = "engine, 1 rule, 1 M users";
pub const TRACKED: &str = "tollgate, tracking on";
/// The store without rules: how it scales is what the engine can reach.
pub const STORE: &str = "the limiter alone";
pub const MATCHING_LINE: &str = "engine, rules that match, 100 k users";
/// Numbers of rules that match, and how many times as long as one they may take.
pub const MATCHING: [(&str, f64); 3] =
    [("1 matching rule", 1.0), ("3 matching rules", 2.2), ("10 matching rules", 10.0)];

type Enter = fn(&'static str, Allowance, usize) -> Box<dyn Entrant<String>>;

pub fn measure(effort: &Effort, scores: &mut Scores) {
    eprintln!("measuring the engine");
    let engines: [(&'static str, Enter); 4] = [
        (OURS, enter::<String, OurEngine<1, false>>),
        (TRACKED, enter::<String, OurEngine<1, true>>),
        (STORE, enter::<String, Ours>),
        (LIMITADOR, enter::<String, Limitador>),
    ];
    contest(LINE, engines, effort.keys(1_000_000), effort, scores);
    let engines: [(&'static str, Enter); 3] = [
        (MATCHING[0].0, enter::<String, OurEngine<1, false>>),
        (MATCHING[1].0, enter::<String, OurEngine<3, false>>),
        (MATCHING[2].0, enter::<String, OurEngine<10, false>>),
    ];
    contest(MATCHING_LINE, engines, effort.keys(100_000), effort, scores);
}

fn contest<const ENTRANTS: usize>(
    line: &str,
    engines: [(&'static str, Enter); ENTRANTS],
    keys: usize,
    effort: &Effort,
    scores: &mut Scores,
) {
    let entered = |(name, enter): (&'static str, Enter)| move || (name, enter(name, Allowance::Ample, keys));
    let entrants = prepare(engines.into_iter().map(entered).collect());
    let all: Vec<_> = entrants.iter().collect();
    compare(line, &all, &Draws::uniform(keys, effort.layout), Manner::Single, effort, scores);
}

pub fn print(scores: &Scores) {
    let time = |line, name, threads| scores.get(line, name, threads).unwrap_or(f64::NAN);
    let mut table = Table::new(
        "Engine: 1 rule, 1 M users, uniform, allowed, ns",
        ["", "1 thread", "2 threads", "2 threads together, × 1", "1 thread, × limitador"],
    );
    for name in [OURS, TRACKED, STORE, LIMITADOR] {
        let one = time(LINE, name, 1);
        let two = time(LINE, name, 2);
        let share = format!("{:.3}", one / time(LINE, LIMITADOR, 1));
        table.row([name.to_owned(), short(one), short(two), format!("{:.2}", 2.0 * one / two), share]);
    }
    table.print();
    let mut table = Table::new(
        "Engine: rules that match, 100 k users, uniform, allowed, ns",
        ["", "1 thread", "2 threads", "1 thread, × 1 rule"],
    );
    for (name, _) in MATCHING {
        let one = time(MATCHING_LINE, name, 1);
        let growth = format!("{:.2}", one / time(MATCHING_LINE, MATCHING[0].0, 1));
        table.row([name.to_owned(), short(one), short(time(MATCHING_LINE, name, 2)), growth]);
    }
    table.print();
}
