//! Medians, ratios within the run, and the targets.

use crate::part::{Contestant, Part, RATELIMIT, TONIC, Turn};

enum Target {
    /// At least this share of the other's requests per second.
    Speed { of: &'static str, at_least: f64 },
    /// At most this multiple of the other's processor time per request.
    Cpu { of: &'static str, at_most: f64 },
}

const fn targets(part: Part) -> &'static [Target] {
    match part {
        Part::Resp => &[Target::Speed { of: "floor", at_least: 0.85 }],
        Part::Pipeline => {
            &[Target::Speed { of: "floor", at_least: 0.6 }, Target::Speed { of: "Redis GET", at_least: 1.0 }]
        }
        Part::Http => &[Target::Speed { of: "axum, constant JSON", at_least: 1.0 }],
        Part::Grpc => &[Target::Speed { of: TONIC, at_least: 0.95 }],
        Part::Streams => &[Target::Speed { of: TONIC, at_least: 0.9 }],
        Part::Strict => {
            &[Target::Speed { of: RATELIMIT, at_least: 3.0 }, Target::Cpu { of: RATELIMIT, at_most: 0.25 }]
        }
        Part::StrictGrpc => &[],
        Part::Proxy => {
            &[Target::Speed { of: "nginx", at_least: 0.95 }, Target::Cpu { of: "nginx", at_most: 1.1 }]
        }
    }
}

/// Prints the table of a part; returns how many of its targets are missed.
pub fn print(part: Part, contestants: &[Contestant]) -> usize {
    println!("{}\n", part.title());
    println!("{:24} {:>12} {:>14} {:>10} {:>10}", "", "requests/s", "CPU, µs each", "speed", "CPU");
    let Some(ours) = find(contestants, "Tollgate") else { return 1 };
    let our_speed = median(ours, |turn| turn.per_second);
    let our_cpu = median(ours, |turn| turn.cpu_micros);
    let mut sorted: Vec<_> = contestants.iter().collect();
    sorted.sort_by(|a, b| median(b, |turn| turn.per_second).total_cmp(&median(a, |turn| turn.per_second)));
    for contestant in sorted {
        let speed = median(contestant, |turn| turn.per_second);
        let cpu = median(contestant, |turn| turn.cpu_micros);
        let ratios = if contestant.name == "Tollgate" {
            String::new()
        } else {
            format!("{:>9.2}× {:>9.2}×", our_speed / speed, our_cpu / cpu)
        };
        println!("{:24} {speed:>12.0} {cpu:>14.2} {ratios}", contestant.name);
    }
    println!();
    let missed = targets(part).iter().filter(|target| !print_target(target, contestants)).count();
    println!();
    missed
}

/// Prints whether a target holds; returns that. Beside a rival that did not start nothing was shown to hold.
fn print_target(target: &Target, contestants: &[Contestant]) -> bool {
    let (name, what) = match target {
        Target::Speed { of, .. } => (*of, "requests per second"),
        Target::Cpu { of, .. } => (*of, "CPU per request"),
    };
    let (Some(ours), Some(theirs)) = (find(contestants, "Tollgate"), find(contestants, name)) else {
        println!("{what}: {name} or Tollgate did not take part: MISSED");
        return false;
    };
    let (ratio, holds, bound) = match target {
        Target::Speed { at_least, .. } => {
            let ratio = median_ratio(ours, theirs, |turn| turn.per_second);
            (ratio, ratio >= *at_least, format!("at least {at_least}"))
        }
        Target::Cpu { at_most, .. } => {
            let ratio = median_ratio(ours, theirs, |turn| turn.cpu_micros);
            (ratio, ratio <= *at_most, format!("at most {at_most}"))
        }
    };
    let verdict = if holds { "holds" } else { "MISSED" };
    println!("{what}: {ratio:.2} of {name} ({bound}): {verdict}");
    holds
}

fn find<'c>(contestants: &'c [Contestant], name: &str) -> Option<&'c Contestant> {
    contestants.iter().find(|contestant| contestant.name == name)
}

fn median(contestant: &Contestant, figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(contestant.turns.iter().map(figure).collect())
}

/// The median of the ratios of each round: what else the machine does changes both in a round.
fn median_ratio(ours: &Contestant, theirs: &Contestant, figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(ours.turns.iter().zip(&theirs.turns).map(|(ours, theirs)| figure(ours) / figure(theirs)).collect())
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
