//! Decoders of stored values, for fuzz targets.

use tollgate::Time;
use tollgate::internal::identity::Key;

use super::record::OffenderRecord;
use super::seal::Seal;
use super::{BanEvent, log};
use crate::counters::name::Naming;

/// Decodes the record of a ban key and encodes it again.
pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
    OffenderRecord::decode(bytes).map(|record| record.encode())
}

/// An entry of the ban log: the ban of a key is lifted.
pub fn lift_entry(key: &str) -> Vec<u8> {
    let key = Key::parse(key).expect("a valid key");
    log::encode(&BanEvent::Lifted { key, until: Time::from_secs(1) }, &Seal::of(&Naming::Plain))
}

/// Decodes an entry of the ban log and encodes it again.
pub fn log_entry(bytes: &[u8]) -> Option<Vec<u8>> {
    let seal = Seal::of(&Naming::Plain);
    log::decode(bytes, &seal).map(|event| log::encode(&event, &seal))
}
