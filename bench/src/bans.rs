//! The cost of bans: for clients that are not banned, and for a banned one.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tollgate::internal::EngineCore;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate::{Clock, Hit, Time};

use crate::effort::Effort;
use crate::ours::engine_of;
use crate::score::{Scores, median, short};
use crate::table::Table;

pub const STRANGERS: &str = "bans, those who are not banned";
const BANNED: &str = "bans, one who is banned";
/// Names and numbers of the bans in force.
pub const COUNTS: [(&str, usize); 4] =
    [("no ban", 0), ("1 of a user, 1 of an address", 2), ("1 k", 1_000), ("1 M", 1_000_000)];
const PEOPLE: usize = 10_000;

struct Banning {
    name: &'static str,
    engine: EngineCore,
    people: Vec<(String, IpAddr)>,
}

pub fn measure(effort: &Effort, scores: &mut Scores) {
    let sets = COUNTS.map(|(name, count)| banning(name, count.min(effort.keys(1_000_000))));
    for (line, threads, banned) in
        [(STRANGERS, 1, false), (STRANGERS, 2, false), (BANNED, 1, true), (BANNED, 2, true)]
    {
        let mut times = vec![Vec::new(); sets.len()];
        for round in 0..effort.rounds {
            for turn in 0..sets.len() {
                let n = (turn + round) % sets.len();
                let measure =
                    |time| if banned { turned_away(&sets[n], time) } else { passed(&sets[n], time) };
                measure(effort.warm);
                let each = std::thread::scope(|scope| {
                    let runs: Vec<_> = (0..threads).map(|_| scope.spawn(|| measure(effort.slice))).collect();
                    runs.into_iter().map(|run| run.join().expect("no panic")).fold(0.0, f64::max)
                });
                times[n].push(each / threads as f64);
            }
        }
        for (set, times) in sets.iter().zip(times) {
            scores.put(line, set.name, threads, median(times));
        }
    }
}

pub fn print(scores: &Scores) {
    let mut table = Table::new(
        "Bans: 1 rule, 10 k users from as many addresses; ns",
        ["", "1 thread", "2 threads", "× no ban", "one banned user, 1 thread", "2 threads"],
    );
    let time = |line, name, threads| scores.get(line, name, threads).unwrap_or(f64::NAN);
    for (name, count) in COUNTS {
        let one = time(STRANGERS, name, 1);
        let turned_away =
            |threads| if count == 0 { String::new() } else { short(time(BANNED, name, threads)) };
        table.row([
            name.to_owned(),
            short(one),
            short(time(STRANGERS, name, 2)),
            format!("{:.2}", one / time(STRANGERS, COUNTS[0].0, 1)),
            turned_away(1),
            turned_away(2),
        ]);
    }
    table.print();
}

fn banning(name: &'static str, count: usize) -> Banning {
    let engine = engine_of("rules: [{id: r, key: user, limit: 1000000000/d}]");
    for n in 0..count {
        let key = match n % 2 {
            0 => format!("user:evil-{n}"),
            _ => format!("ip:{}", Ipv4Addr::from_bits(0x0b00_0000 + n as u32)),
        };
        let ban = Ban { until: Time::MAX, reason: "scraping".into(), source: BanSource::Manual, strikes: 0 };
        engine.put_ban(Key::parse(&key).expect("a key"), ban, Clock::new().now());
    }
    let person = |n: usize| (format!("user-{n}"), Ipv4Addr::from_bits(0xc000_0000 + n as u32).into());
    Banning { name, engine, people: (0..PEOPLE).map(person).collect() }
}

/// Nanoseconds for a hit that passes.
fn passed(set: &Banning, time: Duration) -> f64 {
    run(set, time, |(user, ip)| Hit::on("GET", "", "/").user(user.as_str()).ip(*ip), true)
}

/// Nanoseconds for a hit of a banned client, if there are bans.
fn turned_away(set: &Banning, time: Duration) -> f64 {
    let is_banned = set.name != COUNTS[0].0;
    run(set, time, |(_, ip)| Hit::on("GET", "", "/").user("evil-0").ip(*ip), !is_banned)
}

fn run<'s>(
    set: &'s Banning,
    time: Duration,
    hit: impl Fn(&'s (String, IpAddr)) -> Hit<'s>,
    expected: bool,
) -> f64 {
    let clock = Clock::new();
    let mut decisions = 0;
    let mut as_expected = 0;
    let start = Instant::now();
    while start.elapsed() < time {
        for person in &set.people {
            let verdict = set.engine.check(&hit(person), clock.now());
            as_expected += usize::from(verdict.allowed == expected);
            decisions += 1;
        }
    }
    assert_eq!(as_expected, decisions, "exactly the banned keys are denied");
    start.elapsed().as_nanos() as f64 / decisions as f64
}
