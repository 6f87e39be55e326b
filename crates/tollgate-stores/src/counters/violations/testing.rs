//! Decoders of stored values, for fuzz targets.

use super::log;
use super::record::OffenderRecord;
use super::seal::Seal;
use crate::counters::name::Naming;

/// Decodes the record of a ban key and encodes it again.
pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
    OffenderRecord::decode(bytes).map(|record| record.encode())
}

/// Decodes an entry of the ban log and encodes it again.
pub fn log_entry(bytes: &[u8]) -> Option<Vec<u8>> {
    let seal = Seal::of(&Naming::Plain);
    log::decode(bytes, &seal).map(|event| log::encode(&event, &seal))
}
