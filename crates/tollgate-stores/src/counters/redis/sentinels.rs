//! Finds the primary of a service through its sentinels.
//!
//! Without a primary, every sentinel is polled at short intervals, and every server that one of them names is dialled.
//! The sentinel that leads a failover marks the replica that it promotes long before it announces the switch (it waits
//! for the promotion to appear in an `INFO` that it sends once a second), so that replica is dialled as well.
//! `dial_store` rejects a server that is still a replica: a candidate that is named too early costs one connection.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until, timeout};

use super::address::Endpoint;
use super::clock::ServerClock;
use super::dial::{CONNECT_TIMEOUT, OwnedConnection, RedisConnectOptions, dial, dial_store, send_command};
use super::resp::RedisReply;
use crate::counters::breaker::Breaker;

/// Between two polls of one sentinel.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// For one reply of a sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(250);
/// A search without success for this long is an outage; it is one earlier if all dials have failed.
const OUTAGE_AFTER: Duration = Duration::from_millis(250);
/// Replies of sentinels in the queue.
const MAX_ANSWERS: usize = 64;
/// Servers that are dialled repeatedly, and concurrent dials: one that hangs must not block others.
const MAX_CANDIDATES: usize = 8;
const MAX_TRIALS: usize = 2 * MAX_CANDIDATES;

#[derive(Clone)]
pub(super) struct Sentinels {
    pub(super) sentinels: Vec<Endpoint>,
    pub(super) service: String,
    pub(super) options: RedisConnectOptions,
}

/// The primary that was found, and the estimate of its clock.
pub(super) struct Primary {
    pub(super) endpoint: Endpoint,
    pub(super) connection: OwnedConnection,
    pub(super) clock: ServerClock,
}

impl Sentinels {
    /// Returns once a primary is found. Until then `breaker` is open, with the reason.
    pub(super) async fn find_primary(
        &self,
        options: &RedisConnectOptions,
        breaker: &Breaker,
        clock: &ServerClock,
    ) -> Primary {
        let (answers, mut named) = mpsc::channel(MAX_ANSWERS);
        let mut polls = JoinSet::new(); // aborted on return
        for sentinel in &self.sentinels {
            polls.spawn(poll_sentinel(sentinel.clone(), self.clone(), answers.clone()));
        }
        let mut candidates: VecDeque<Endpoint> = VecDeque::new(); // named in this search, the latest last
        let mut tried: Vec<Endpoint> = Vec::new(); // being dialled
        let mut trials = FuturesUnordered::new();
        let mut reason = "no sentinel answers".to_owned();
        let begun = Instant::now();
        let mut refused = false;
        let mut round = interval(POLL_INTERVAL);
        round.tick().await; // the first tick is immediate
        loop {
            tokio::select! {
                Some(answer) = named.recv() => match answer {
                    Ok(endpoint) => {
                        candidates.retain(|other| *other != endpoint);
                        candidates.push_back(endpoint.clone());
                        if candidates.len() > MAX_CANDIDATES {
                            candidates.pop_front();
                        }
                        if !tried.contains(&endpoint) && tried.len() < MAX_TRIALS {
                            tried.push(endpoint.clone());
                            trials.push(try_primary(endpoint, options, clock));
                        }
                    }
                    Err(error) if trials.is_empty() => reason = error,
                    Err(_) => {}
                },
                Some((endpoint, trial)) = trials.next() => {
                    match trial {
                        Ok(primary) => return primary,
                        Err(error) => reason = format!("{endpoint}: {error}"),
                    }
                    refused = true;
                    tried.retain(|other| *other != endpoint);
                },
                // A dial that is still running may yet succeed.
                _ = round.tick() => {
                    if begun.elapsed() > OUTAGE_AFTER || (refused && trials.is_empty()) {
                        breaker.trip(&reason);
                        breaker.probe_failed(&reason);
                    }
                    // Dial again, even if the sentinel that named it has stopped replying.
                    for endpoint in &candidates {
                        if !tried.contains(endpoint) && tried.len() < MAX_TRIALS {
                            tried.push(endpoint.clone());
                            trials.push(try_primary(endpoint.clone(), options, clock));
                        }
                    }
                }
            }
        }
    }
}

async fn try_primary(
    endpoint: Endpoint,
    options: &RedisConnectOptions,
    clock: &ServerClock,
) -> (Endpoint, Result<Primary, String>) {
    let clock = clock.without_bounds();
    let dialed = timeout(CONNECT_TIMEOUT, dial_store(&endpoint, options, &clock)).await;
    let dialed = dialed.unwrap_or_else(|_| Err("it accepts connections but does not answer".to_owned()));
    let primary = dialed.map(|connection| Primary { endpoint: endpoint.clone(), connection, clock });
    (endpoint, primary)
}

/// Polls one sentinel until the receiver is dropped, over one connection as long as it lasts.
async fn poll_sentinel(
    sentinel: Endpoint,
    group: Sentinels,
    answers: mpsc::Sender<Result<Endpoint, String>>,
) {
    let mut connection = None;
    loop {
        let next = Instant::now() + POLL_INTERVAL;
        let answer = timeout(SENTINEL_TIMEOUT, query_sentinel(&sentinel, &group, &mut connection)).await;
        let named = answer.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let named = match named {
            Ok(named) => named.into_iter().map(Ok).collect(),
            Err(error) => {
                connection = None;
                vec![Err(format!("sentinel {sentinel}: {error}"))]
            }
        };
        for answer in named {
            if answers.send(answer).await.is_err() {
                return;
            }
        }
        sleep_until(next).await;
    }
}

/// The primary that the sentinel reports, and the replicas that it is promoting.
async fn query_sentinel(
    sentinel: &Endpoint,
    group: &Sentinels,
    connection: &mut Option<OwnedConnection>,
) -> Result<Vec<Endpoint>, String> {
    if connection.is_none() {
        *connection = Some(dial(sentinel, &group.options).await?);
    }
    let connection = connection.as_ref().expect("connected above");
    let primary =
        match send_command(connection, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &group.service]).await? {
            RedisReply::Array(parts) => parts,
            RedisReply::Error(error) => return Err(error),
            _ => return Err(format!("it does not know the service '{}'", group.service)),
        };
    let primary = match &primary[..] {
        [host, port] => endpoint(host.text(), port.text()).ok_or("it gives no address")?,
        _ => return Err("it gives no address".to_owned()),
    };
    let mut named = vec![primary];
    // An error reply here does not invalidate the reported primary.
    let replicas = send_command(connection, &["SENTINEL", "REPLICAS", &group.service]).await?;
    named.extend(replicas.elements().unwrap_or_default().iter().filter_map(promoted).take(MAX_CANDIDATES));
    Ok(named)
}

/// The address of a replica that is being promoted.
fn promoted(replica: &RedisReply) -> Option<Endpoint> {
    let fields = replica.elements()?;
    let field = |name: &str| {
        let pairs = fields.chunks_exact(2);
        pairs.filter(|pair| pair[0].text() == Some(name)).find_map(|pair| pair[1].text())
    };
    let is_promoted = field("flags")?.split(',').any(|flag| flag == "promoted");
    if is_promoted { endpoint(field("ip"), field("port")) } else { None }
}

fn endpoint(host: Option<&str>, port: Option<&str>) -> Option<Endpoint> {
    let host = host.filter(|host| !host.is_empty())?.to_owned();
    Some(Endpoint::Tcp { host, port: port?.parse().ok().filter(|port| *port > 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(flags: &str) -> RedisReply {
        let text = format!(
            "*6\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n$4\r\n7001\r\n$5\r\nflags\r\n${}\r\n{flags}\r\n",
            flags.len()
        );
        RedisReply::parse(text.as_bytes()).expect("valid").expect("whole").0
    }

    #[test]
    fn only_the_replica_that_is_being_promoted_is_named() {
        let address = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 7001 };
        assert_eq!(promoted(&replica("slave,promoted")), Some(address));
        assert_eq!(promoted(&replica("slave,s_down,disconnected")), None);
        assert_eq!(promoted(&RedisReply::Array(Vec::new())), None);
    }
}
