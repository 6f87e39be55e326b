//! Fuzz targets for every parser of untrusted input, a mutational runner for them, and the cases whose
//! instructions `tests/linearity.rs` counts.
//!
//! A target is a plain function over bytes: it panics if what it asserts does not hold. To add one, add it to
//! [`targets::TARGETS`]; to add a linearity case, add it to [`linearity::cases`].

pub mod corpus;
pub mod coverage;
pub mod linearity;
pub mod mutate;
pub mod session;
pub mod targets;

mod response_headers;
use response_headers::response_headers;
