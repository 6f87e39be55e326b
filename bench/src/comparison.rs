//! The table of tables: every line with every contestant.

use crate::roster::{self, CACHED, FLOOR, OURS};
use crate::score::{Scores, short};
use crate::table::Table;

/// One line: nanoseconds, and behind `×` our time as a share of theirs; `*` marks the best exact rival.
pub fn print(title: &str, scores: &Scores, lines: &[String], threads: &[usize]) {
    let shown = |name: &'static str| {
        lines.iter().any(|line| threads.iter().any(|threads| scores.get(line, name, *threads).is_some()))
    };
    let rivals: Vec<&'static str> =
        roster::names().into_iter().filter(|name| roster::is_rival(name) && shown(name)).collect();
    let mut heads = vec!["work", OURS, CACHED, FLOOR];
    if threads.len() > 1 {
        heads.insert(1, "threads");
    }
    heads.extend(&rivals);
    let mut table = Table::new(title, heads);
    for line in lines {
        for of in threads {
            let Some(ours) = scores.get(line, OURS, *of) else { continue };
            let best = scores.best_rival(line, *of).map(|(name, _)| name);
            let fault = |name| if scores.is_faulty(line, name) { "!" } else { "" };
            let cell = |name: &'static str| match scores.get(line, name, *of) {
                None => "–".to_owned(),
                Some(value) => {
                    let mark = if Some(name) == best { "*" } else { "" };
                    format!("{mark}{}{} ×{:.2}", short(value), fault(name), ours / value)
                }
            };
            let mut cells = vec![line.clone(), short(ours) + fault(OURS)];
            if threads.len() > 1 {
                cells.insert(1, of.to_string());
            }
            cells.push(
                scores.get(line, CACHED, *of).map_or("–".to_owned(), |value| short(value) + fault(CACHED)),
            );
            cells.push(cell(FLOOR));
            cells.extend(rivals.iter().map(|name| cell(name)));
            table.row(cells);
        }
    }
    table.print();
}
