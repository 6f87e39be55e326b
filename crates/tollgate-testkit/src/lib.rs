//! What the tests of the workspace share.
//!
//! Processes, folders and ports belong to one test, and are gone when it ends, panics included. Nothing here sleeps for a
//! fixed time: it polls a condition up to a generous deadline ([`SOON`]). A server that is not installed is reported by
//! [`not_run`], and its tests return early; `scripts/test --require-all` turns that into a failure.

#![forbid(unsafe_code)]

#[cfg(feature = "servers")]
pub mod central;
#[cfg(feature = "servers")]
pub mod conformance;
pub mod mixed_rules;
#[cfg(feature = "servers")]
pub mod servers;
#[cfg(feature = "servers")]
pub mod stores;

mod algorithms;
#[cfg(feature = "servers")]
mod folder;
#[cfg(feature = "servers")]
mod http;
#[cfg(feature = "servers")]
mod node;
mod not_run;
#[cfg(feature = "servers")]
mod process;
#[cfg(feature = "servers")]
mod wait;

pub use algorithms::ALGORITHMS;
#[cfg(feature = "servers")]
pub use folder::Folder;
#[cfg(feature = "servers")]
pub use http::{Answer, Client};
#[cfg(feature = "servers")]
pub use node::{CommandOutput, Server, binary, is_closed, pour, run, tollgate};
pub use not_run::not_run;
#[cfg(feature = "servers")]
pub use process::{Process, find, free_port};
#[cfg(feature = "servers")]
pub use wait::{SOON, Waits, eventually};
