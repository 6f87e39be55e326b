//! What fuzz targets and linearity tests need of the drivers' internals.

use tollgate::{Limit, Time};

pub use crate::counters::redis::RedisReply;
use crate::counters::redis::resp::RespDecoder;
pub use crate::counters::violations::testing as violations;
use crate::counters::{memcached::wire, state, track};

/// The replies in what a Redis server sends, read in pieces; `None` if it is not the protocol.
pub fn redis_replies(bytes: &[u8], piece: usize) -> Option<Vec<RedisReply>> {
    let mut decoder = RespDecoder::default();
    let mut buffer = Vec::new();
    let mut replies = Vec::new();
    for read in bytes.chunks(piece) {
        buffer.extend_from_slice(read);
        while let Some(reply) = decoder.next(&buffer).ok()? {
            replies.push(reply);
        }
        decoder.trim(&mut buffer);
    }
    Some(replies)
}

/// The answers in what a Memcached server sends, read in pieces; `None` if it is not the protocol.
pub fn memcached_answers(bytes: &[u8], piece: usize) -> Option<Vec<String>> {
    let mut answers = Vec::new();
    let mut buffer = Vec::new();
    for read in bytes.chunks(piece) {
        buffer.extend_from_slice(read);
        let mut used = 0;
        while let Some(answer) = wire::parse_reply(&buffer[used..]).ok()? {
            used += answer.len;
            answers.push(format!("{:?} {:?}", answer.opaque, answer.reply));
        }
        buffer.drain(..used);
    }
    Some(answers)
}

/// Decodes the state of a counter; returns it as it would be written.
pub fn state(limit: &Limit, bytes: &[u8]) -> Option<Vec<u8>> {
    state::decode(limit, bytes).map(|(under, state)| state::encode(&under, &state, Time::MAX))
}

/// Decodes the record of a tracked key; says whether it is one.
pub fn is_track(text: &[u8]) -> bool {
    track::TrackRecord::parse(text).is_some()
}
