//! Access to driver internals for fuzz targets and for tests of linear running time.

use tollgate::Time;
use tollgate::internal::Limit;

pub use crate::counters::redis::RedisReply;
use crate::counters::redis::resp::RespDecoder;
pub use crate::counters::violations::testing as violations;
use crate::counters::{memcached::wire, state, track};

/// Decodes the bytes of a Redis server in pieces of `piece` bytes; `None` on a protocol error.
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

/// Decodes the bytes of a Memcached server in pieces of `piece` bytes; `None` on a protocol error.
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

/// Decodes the state of a counter and encodes it again.
pub fn state(limit: &Limit, bytes: &[u8]) -> Option<Vec<u8>> {
    state::decode(limit, bytes).map(|(under, state)| state::encode(&under, &state, Time::MAX))
}

/// Whether the text decodes as the record of a tracked key.
pub fn is_track(text: &[u8]) -> bool {
    track::TrackRecord::parse(text).is_some()
}
