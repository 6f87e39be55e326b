//! What the other crates of this project are built from. It is no part of the public API and changes without notice.

pub use crate::api::SETTINGS_OF_THE_SERVER;
pub use crate::enforce::Enforce;
pub use crate::engine::{EngineCore, EngineSetup};
pub use crate::limit::{Limit, Rate, Shape};
pub use crate::policy::PolicySnapshot;
pub use crate::verdict::EngineVerdict;

macro_rules! expose {
    ($($module:ident)*) => {
        $(pub mod $module {
            pub use crate::$module::*;
        })*
    };
}

expose! {
    algorithm ban changes document enforce engine event fingerprint headers hit identity limit limiter policy
    request rule rule_stats store time track verdict
}

#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::testing::*;
}

#[cfg(shuttle)]
pub use crate::sync::seeded;
