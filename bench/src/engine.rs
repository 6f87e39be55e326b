//! The whole engine, from a hit to a verdict, next to limitador's check-and-update.

use crate::contestant::Allowance;
use crate::decisions::compare;
use crate::effort::Effort;
use crate::entrant::{Entrant, Manner, enter};
use crate::keys::Draws;
use crate::ours::OurEngine;
use crate::rival::Limitador;
use crate::roster::{LIMITADOR, OURS};
use crate::score::{Scores, short};
use crate::table::Table;

pub const LINE: &str = "engine, 1 rule, 1 M users";
pub const TRACKED: &str = "tollgate, tracking on";
/// The names of engines with more matching rules.
pub const MATCHING: [(&str, usize); 3] = [(OURS, 1), ("3 matching rules", 3), ("10 matching rules", 10)];

pub fn measure(effort: &Effort, scores: &mut Scores) {
    eprintln!("measuring the engine");
    let keys = effort.keys(1_000_000);
    let entered = |name, enter: fn(&'static str, Allowance, usize) -> Box<dyn Entrant<String>>| {
        (name, enter(name, Allowance::Ample, keys))
    };
    let entrants = [
        entered(OURS, enter::<String, OurEngine<1, false>>),
        entered(TRACKED, enter::<String, OurEngine<1, true>>),
        entered(LIMITADOR, enter::<String, Limitador>),
        entered(MATCHING[1].0, enter::<String, OurEngine<3, false>>),
        entered(MATCHING[2].0, enter::<String, OurEngine<10, false>>),
    ];
    let all: Vec<_> = entrants.iter().collect();
    compare(LINE, &all, &Draws::uniform(keys), Manner::Single, effort, scores);
}

pub fn print(scores: &Scores) {
    let mut table = Table::new(
        "Engine: strings, 1 M users, uniform, allowed, ns",
        ["", "1 thread", "2 threads", "1 thread, × limitador", "1 thread, × 1 rule"],
    );
    for name in [OURS, TRACKED, MATCHING[1].0, MATCHING[2].0, LIMITADOR] {
        let time = |name, threads| scores.get(LINE, name, threads).unwrap_or(f64::NAN);
        let one = time(name, 1);
        table.row([
            name.to_owned(),
            short(one),
            short(time(name, 2)),
            format!("{:.3}", one / time(LIMITADOR, 1)),
            format!("{:.2}", one / time(OURS, 1)),
        ]);
    }
    table.print();
}
