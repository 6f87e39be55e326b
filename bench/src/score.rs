//! What was measured, by line, name and number of threads.

use std::collections::BTreeMap;

use crate::entrant::Faults;
use crate::roster;
use crate::table::Table;

#[derive(Default)]
pub struct Scores {
    lines: Vec<String>,
    /// Wrong decisions, and out of how many, by line and name.
    faults: BTreeMap<(String, &'static str), (usize, usize)>,
    values: BTreeMap<(String, &'static str, usize), f64>,
}

impl Scores {
    pub fn put(&mut self, line: &str, name: &'static str, threads: usize, value: f64) {
        if !self.lines.iter().any(|known| known == line) {
            self.lines.push(line.to_owned());
        }
        self.values.insert((line.to_owned(), name, threads), value);
    }

    pub fn get(&self, line: &str, name: &'static str, threads: usize) -> Option<f64> {
        self.values.get(&(line.to_owned(), name, threads)).copied()
    }

    /// Remembers wrong decisions.
    pub fn note(&mut self, line: &str, name: &'static str, faults: Faults) {
        if faults.wrong > 0 {
            let (wrong, of) = self.faults.entry((line.to_owned(), name)).or_default();
            *wrong += faults.wrong;
            *of += faults.decisions;
        }
    }

    pub fn is_faulty(&self, line: &str, name: &'static str) -> bool {
        self.faults.contains_key(&(line.to_owned(), name))
    }

    /// Lists wrong decisions; says whether none of ours was.
    pub fn print_faults(&self) -> bool {
        if !self.faults.is_empty() {
            let mut table =
                Table::new("Wrong decisions, in the rounds that had any", ["work", "who", "wrong", "of"]);
            for ((line, name), (wrong, of)) in &self.faults {
                table.row([line.clone(), (*name).to_owned(), wrong.to_string(), of.to_string()]);
            }
            table.print();
        }
        self.faults.keys().all(|(_, name)| roster::is_rival(name))
    }

    /// Lines in the order in which they were measured.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The fastest, or smallest, of the exact rivals.
    pub fn best_rival(&self, line: &str, threads: usize) -> Option<(&'static str, f64)> {
        self.rivals_by_value(line, threads).into_iter().next()
    }

    pub fn rivals_by_value(&self, line: &str, threads: usize) -> Vec<(&'static str, f64)> {
        let mut rivals: Vec<(&'static str, f64)> = self
            .values
            .iter()
            .filter(|((known, name, of), _)| known == line && *of == threads && roster::is_exact_rival(name))
            .map(|((_, name, _), value)| (*name, *value))
            .collect();
        rivals.sort_by(|a, b| a.1.total_cmp(&b.1));
        rivals
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// As many digits as mean something.
pub fn short(value: f64) -> String {
    match value {
        value if value < 9.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}
