//! How large a file of rules is, and how long its first load takes, each rule parsed.
//!
//! Usage: rules_load FILE RULES. The file is made if it is not there.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use tollgate::Time;
use tollgate::document::{self, Problems};
use tollgate::rule::parse;
use tollgate_stores::rules::sqlite::SqliteDb;
use tollgate_stores::rules::{Author, Edit, Expected, RuleText, Stored};

const BATCH: usize = 20_000;

fn fill(db: &SqliteDb, rules: usize) -> Result<(), Box<dyn Error>> {
    let author = Author { who: "import".to_owned(), at: Time::from_secs(1_800_000_000) };
    let numbers: Vec<usize> = (0..rules).collect();
    for batch in numbers.chunks(BATCH) {
        let edits = batch.iter().map(|n| {
            let text = format!(
                r#"{{"id":"rule-{n:07}","uid":"user-{n}","url":"GET /api/v1/items/{}/**","time":"minute","requests":{}}}"#,
                n % 1_000,
                1 + n % 500
            );
            RuleText::parse(&text).map(|rule| Edit::rule(rule, Expected::Nothing))
        });
        db.edit(&author, edits.collect::<Result<_, _>>()?)?;
    }
    Ok(())
}

/// How many of the rules can be read.
fn parsed(batch: &[Stored]) -> usize {
    let reads = |stored: &&Stored| {
        let mut problems = Problems::new();
        document::read(&stored.text).is_ok_and(|node| parse::rule(&node, "rule", &mut problems).is_some())
    };
    batch.iter().filter(reads).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rules] = arguments.as_slice() else { return Err("usage: rules_load FILE RULES".into()) };
    let new = !Path::new(path).exists();
    let db = SqliteDb::open(Path::new(path))?;
    let start = Instant::now();
    if new {
        fill(&db, rules.parse()?)?;
        eprintln!("written in {:.1} s", start.elapsed().as_secs_f64());
    }
    let (start, mut count) = (Instant::now(), 0);
    let version = db.load(|batch, total| {
        count += parsed(&batch);
        if count % 100_000 == 0 {
            eprintln!("{count} of {total}");
        }
    })?;
    let bytes = std::fs::metadata(path)?.len();
    let took = start.elapsed().as_secs_f64();
    eprintln!("{count} rules at version {version} in {took:.2} s; {} MB", bytes / 1_000_000);
    Ok(())
}
