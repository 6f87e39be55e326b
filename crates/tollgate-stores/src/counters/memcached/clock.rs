//! The clock of a server, in its statistics.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tollgate::Time;

use super::address::MemcachedAddress;
use super::server::open_connection;
use crate::server_time::ClockReading;

/// The statistics take less.
const MAX_STATISTICS_BYTES: usize = 64 << 10;
/// The time is that of the start and the seconds since, each rounded down, as of the last tick of a timer: together it
/// may be this much behind.
const MAX_BEHIND: Duration = Duration::from_secs(3);
/// It begins with a second that was not over when the server started.
const MAX_AHEAD: Duration = Duration::from_secs(1);

/// The time of each server, or why it is unknown.
pub async fn server_times(
    address: &MemcachedAddress,
    deadline: Duration,
) -> Vec<(String, Result<ClockReading, String>)> {
    let mut times = Vec::with_capacity(address.servers.len());
    for server in &address.servers {
        let read = timeout(deadline, server_time(address, server)).await;
        times.push((server.clone(), read.unwrap_or_else(|_| Err("no answer in time".to_owned()))));
    }
    times
}

async fn server_time(address: &MemcachedAddress, server: &str) -> Result<ClockReading, String> {
    let mut stream = open_connection(server, address.credentials.as_ref()).await?;
    let sent = Instant::now();
    stream.write_all(b"stats\r\n").await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"END\r\n") {
        let read = stream.read_buf(&mut answer).await.map_err(|error| error.to_string())?;
        if read == 0 || answer.len() > MAX_STATISTICS_BYTES {
            return Err("its statistics cannot be read".to_owned());
        }
    }
    let round_trip = sent.elapsed();
    let at = time_of(&answer).ok_or("its statistics have no time")?;
    Ok(ClockReading {
        server: server.to_owned(),
        earliest: at - MAX_AHEAD,
        latest: at + MAX_BEHIND,
        round_trip,
    })
}

fn time_of(statistics: &[u8]) -> Option<Time> {
    let text = str::from_utf8(statistics).ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("STAT time ")?.trim().parse().ok())?;
    Some(Time::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_one_of_the_statistics() {
        let statistics =
            b"STAT uptime 3\r\nSTAT time_in_listen_disabled_us 7\r\nSTAT time 1800000000\r\nEND\r\n";
        assert_eq!(time_of(statistics), Some(Time::from_secs(1_800_000_000)));
        assert_eq!(time_of(b"END\r\n"), None);
    }
}
