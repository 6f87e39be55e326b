//! Imports of the admin API: for fuzz targets and linearity tests.

use std::sync::{Arc, LazyLock};

use crate::admin::bans;
use crate::gate::Gate;
use crate::testing::gate;

/// The number of bans in a text, if all of them are valid.
pub fn bans(text: &str) -> Option<usize> {
    static GATE: LazyLock<Arc<Gate>> = LazyLock::new(|| gate("rules: [{ id: a, limit: 5/m }]"));
    bans::parse_bans(&GATE, text).ok().map(|bans| bans.len())
}
