//! What the other crates of this project are built from. It is no part of the public API and changes without notice.

pub use crate::api::{SETTINGS_OF_THE_SERVER, core_of, layer_settings_of, snapshot_of};
pub use crate::enforce::Enforce;
pub use crate::engine::{EngineCore, EngineSetup};
pub use crate::limit::{Limit, Rate, Shape};
pub use crate::policy::{PolicySnapshot, shared_secret};
pub use crate::sync::lock;
pub use crate::verdict::EngineVerdict;

macro_rules! expose {
    ($($module:ident)*) => {
        $(pub mod $module {
            pub use crate::$module::*;
        })*
    };
}

expose! {
    algorithm ban changes denial document enforce engine fingerprint headers hit hold identity limit limiter policy
    request rule rule_stats settlement store stripes time track verdict
}

#[cfg(feature = "http")]
expose! { http }

#[cfg(feature = "tickets")]
expose! { ticket }

#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::testing::*;
}

#[cfg(shuttle)]
pub use crate::sync::seeded;
