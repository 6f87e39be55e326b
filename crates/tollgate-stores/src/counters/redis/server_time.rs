//! The clock of the server that has a key.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::Time;

use super::address::RedisAddress;
use super::client::RedisClient;
use super::resp::RedisReply;
use crate::server_time::ClockReading;

/// A key with the prefix of the counters: users may be restricted to it.
const KEY: &str = "tg1:doctor";

/// The time of one server, or why it is unknown. `name` is the server's in messages.
pub async fn server_time(
    address: &RedisAddress,
    name: &str,
    deadline: Duration,
) -> Result<ClockReading, String> {
    let client = RedisClient::open(address.clone(), deadline)?;
    // The first command waits for the connection.
    client.command(KEY, &["TIME"]).await.map_err(|error| error.to_string())?;
    let sent = Instant::now();
    let reply = client.command(KEY, &["TIME"]).await.map_err(|error| error.to_string())?;
    let round_trip = sent.elapsed();
    let at = time_of(&reply).ok_or("it does not tell its time")?;
    Ok(ClockReading::new(name, at, Duration::from_micros(1), round_trip))
}

/// Seconds and microseconds.
fn time_of(reply: &RedisReply) -> Option<Time> {
    let RedisReply::Array(words) = reply else { return None };
    let number = |n: usize| match words.get(n) {
        Some(RedisReply::Bulk(bytes)) => str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    };
    Some(Time::from_secs(number(0)?) + Duration::from_micros(number(1)?))
}
