//! Runs every linearity case in two sizes, for counting instructions: `linearity [PART OF A NAME]` prints the names.
//!
//! What is counted is the function `linearity_measured`; `tests/linearity.rs` runs this under callgrind.

#![allow(clippy::print_stdout)] // names, in the order of what is counted

use tollgate_fuzz::linearity::{BOUND_MARK, Case, Growth, Work, cases};

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    for Case { name, size, growth, prepare } in cases().filter(|case| case.name.contains(&part)) {
        // What is done once, such as to begin a runtime, is not counted.
        prepare(size / 8)();
        linearity_measured(prepare(*size));
        linearity_measured(prepare(2 * size));
        match growth {
            Growth::Linear => println!("{name}"),
            Growth::Bounded(bound) => println!("{name}{BOUND_MARK}{bound}"),
        }
    }
}

/// Its name is exported by `build.rs`: a stripped binary has no others.
#[unsafe(no_mangle)]
#[inline(never)]
fn linearity_measured(work: Work) {
    work();
}
