//! Inputs that are made to cost more than they should, in two sizes: double the input may cost at most 2.2 times the
//! instructions; where a named bound ends the work, no more than before.
//!
//! A case makes its input outside of what is counted and returns the work to be counted. `tests/linearity.rs` runs all
//! cases under callgrind (the binary `linearity`), so the result does not depend on how busy the machine is.

mod bodies;
mod client;
mod connections;
mod documents;
mod envoy;
mod http2;
mod identity;
mod resp;
mod stores;
mod waiting;

/// Between the name of a case and its bound, as the binary prints them.
pub const BOUND_MARK: &str = " | ";

/// What is counted.
pub type Work = Box<dyn FnOnce()>;

pub struct Case {
    pub name: &'static str,
    /// The size of the smaller input, in bytes or so.
    pub size: usize,
    pub growth: Growth,
    pub prepare: fn(size: usize) -> Work,
}

/// What twice the input costs.
#[derive(Clone, Copy)]
pub enum Growth {
    /// Up to twice as much.
    Linear,
    /// As much as before: the rest is not read, because of this bound.
    Bounded(&'static str),
}

/// All cases, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        bodies::CASES,
        connections::CASES,
        http2::CASES,
        waiting::CASES,
        documents::CASES,
        identity::CASES,
        resp::CASES,
        envoy::CASES,
        client::CASES,
        stores::CASES,
    ]
    .into_iter()
    .flatten()
}

const fn case(name: &'static str, size: usize, prepare: fn(usize) -> Work) -> Case {
    Case { name, size, growth: Growth::Linear, prepare }
}

const fn bounded(name: &'static str, bound: &'static str, size: usize, prepare: fn(usize) -> Work) -> Case {
    Case { name, size, growth: Growth::Bounded(bound), prepare }
}

/// Repeats a part up to a size.
fn fill(part: &str, size: usize) -> String {
    part.repeat(size / part.len())
}

/// Numbered parts up to a size.
fn numbered(size: usize, part: impl Fn(usize) -> String) -> String {
    let mut text = String::with_capacity(size);
    for n in 0.. {
        if text.len() >= size {
            break;
        }
        text += &part(n);
    }
    text
}

/// The work of a function on an input; its result is not looked at.
fn work<I: 'static, T>(input: I, run: impl FnOnce(&I) -> T + 'static) -> Work {
    Box::new(move || drop(std::hint::black_box(run(&input))))
}
