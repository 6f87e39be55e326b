//! Measurements of Tollgate, everything in a table from the same run on the same machine.

mod rules;

fn main() {
    let part = std::env::args().nth(1);
    match part.as_deref() {
        None | Some("rules") => rules::measure(),
        Some(other) => {
            eprintln!("unknown part '{other}': use rules");
            std::process::exit(2);
        }
    }
}
