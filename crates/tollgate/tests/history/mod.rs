//! Random histories of one key: the limits it is under, what happens to it, and what must hold.

mod abuse;
mod lag;
mod ledger;
mod limits;
mod run;
mod steps;

pub use abuse::{Abuse, abuses};
pub use lag::{Lag, lags};
pub use limits::{Case, Family};
pub use run::Run;
pub use steps::{History, histories};
