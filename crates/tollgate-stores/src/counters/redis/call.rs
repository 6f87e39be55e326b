//! One call for the counters of one slot, to the server that has it.
//!
//! It is resent only after a reply that guarantees that nothing was executed: the script is not loaded, the slot is on
//! another server, or the deadline had passed by the server's clock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::address::{Endpoint, RedisAddress, RedisDeployment, parse_host};
use super::cluster::{ClusterTopology, endpoint_of, slot_of};
use super::connection::{SendError, Sending};
use super::dial::{RedisConnectOptions, tls_config};
use super::link::{LinkRequest, RedisDiscovery, RedisLink};
use super::resp::{RedisReply, encode_command, write_command};
use super::script::{self, At, Op, ScriptEntry, ScriptReply, ScriptResult};
use super::sentinels::Sentinels;
use crate::counters::StoreError;

/// Attempts to have a command executed, each after a reply that nothing was.
const MAX_TRIES: usize = 8;
/// Attempts of a script call, each after a reply that the deadline had passed.
const MAX_DEADLINE_RETRIES: usize = 3;
/// Delay before a retry while a slot is migrating.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(2);
/// Remedy for a cluster that rejects slots which are served.
const FULL_COVERAGE_HINT: &str = "with cluster-require-full-coverage no it serves the slots that it has";

pub(super) enum Topology {
    Single(Arc<RedisLink>),
    Cluster(ClusterTopology),
}

/// A script other than the one that decides charges.
pub(super) struct Script {
    source: &'static str,
    /// SHA-1 of the source, for `EVALSHA`.
    sha: String,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Script {
        Script { source, sha: script::sha_of(source) }
    }
}

/// A script call and its deadline.
pub(super) struct ScriptCall<'a> {
    pub(super) slot: u16,
    pub(super) op: Op,
    pub(super) at: At,
    pub(super) entries: &'a [ScriptEntry<'a>],
    pub(super) deadline: Instant,
}

/// The error replies that are handled specially.
#[derive(PartialEq, Eq, Debug)]
enum ErrorReply {
    NoScript,
    Moved {
        slot: u16,
        to: Endpoint,
    },
    Ask {
        to: Endpoint,
    },
    TryAgain,
    /// The server is a cluster member but is addressed as a single server.
    ClusterMember,
    /// The server is now a replica.
    ReadOnly,
    /// The server is loading its data or is busy with a slow script.
    NotReady,
    /// The server has the slot but rejects it, because another slot of the cluster is not served.
    ClusterDown,
    Other,
}

impl Topology {
    /// Connects in the background. Fails only if certificates cannot be read.
    pub(super) fn open(address: RedisAddress) -> Result<Topology, String> {
        let tls = address.tls.as_ref().map(tls_config).transpose()?;
        let options = |credentials, database| RedisConnectOptions { credentials, database, tls: tls.clone() };
        let store_options = options(address.credentials, address.database);
        Ok(match address.deployment {
            RedisDeployment::Single(endpoint) => Topology::Single(Arc::new(RedisLink::open(
                RedisDiscovery::Fixed(endpoint),
                store_options,
                Arc::default(),
            ))),
            RedisDeployment::Sentinel { sentinels, service } => {
                let sentinel_options = options(address.sentinel_credentials, 0);
                let discovery =
                    RedisDiscovery::Sentinels(Sentinels { sentinels, service, options: sentinel_options });
                Topology::Single(Arc::new(RedisLink::open(discovery, store_options, Arc::default())))
            }
            RedisDeployment::Cluster(seeds) => Topology::Cluster(ClusterTopology::open(seeds, store_options)),
        })
    }

    pub(super) async fn link(&self, slot: u16, deadline: Instant) -> Result<Arc<RedisLink>, StoreError> {
        match self {
            Topology::Single(link) => Ok(Arc::clone(link)),
            Topology::Cluster(cluster) => cluster.link(slot, deadline).await,
        }
    }

    /// Makes the call; returns the result and the name of the server.
    pub(super) async fn call_script(
        &self,
        call: &ScriptCall<'_>,
    ) -> Result<(ScriptResult, String), StoreError> {
        let ScriptCall { slot, op, at, entries, deadline } = *call;
        let mut deadline_retries = 0;
        loop {
            let (reply, link) =
                self.execute(slot, Some(script::SOURCE), deadline, LinkRequest::Charges(call)).await?;
            match script::parse_reply(&reply, op, entries) {
                Some(ScriptReply::Done(done)) => {
                    if at == At::Server {
                        link.clock().observe(done.now_us, Instant::now());
                    }
                    return Ok((done, link.server().to_owned()));
                }
                // Nothing was executed. With time left by our clock, the estimate of the server's clock was too low: retry.
                Some(ScriptReply::DeadlinePassed { server_us }) => {
                    link.clock().observe(server_us, Instant::now());
                    deadline_retries += 1;
                    if deadline_retries == MAX_DEADLINE_RETRIES || Instant::now() >= deadline {
                        return Err(StoreError::Deadline { server: link.server().to_owned() });
                    }
                }
                None => return Err(refused(&link, "the script returned an unexpected value")),
            }
        }
    }

    /// Sends a plain command for one slot.
    pub(super) async fn command(
        &self,
        slot: u16,
        words: &[impl AsRef<[u8]>],
        deadline: Instant,
    ) -> Result<RedisReply, StoreError> {
        let mut command = Vec::new();
        write_command(&mut command, words);
        let (reply, _) = self.execute(slot, None, deadline, LinkRequest::Command(&command)).await?;
        Ok(reply)
    }

    /// Runs a script on keys of one slot.
    pub(super) async fn run_script(
        &self,
        script: &Script,
        keys: &[impl AsRef<[u8]>],
        arguments: &[&[u8]],
        deadline: Instant,
    ) -> Result<(RedisReply, Arc<RedisLink>), StoreError> {
        let first = keys.first().map_or(&b""[..], AsRef::as_ref);
        let slot = std::str::from_utf8(first).map_or(0, slot_of);
        let count = keys.len().to_string();
        let head = [b"EVALSHA", script.sha.as_bytes(), count.as_bytes()];
        let words: Vec<&[u8]> =
            head.into_iter().chain(keys.iter().map(AsRef::as_ref)).chain(arguments.iter().copied()).collect();
        let mut command = Vec::new();
        write_command(&mut command, &words);
        self.execute(slot, Some(script.source), deadline, LinkRequest::Command(&command)).await
    }

    /// Sends a command to the server of a slot until one executes it: follows redirects, and loads the script that the
    /// command runs where it is missing.
    async fn execute(
        &self,
        slot: u16,
        script: Option<&str>,
        deadline: Instant,
        request: LinkRequest<'_>,
    ) -> Result<(RedisReply, Arc<RedisLink>), StoreError> {
        let mut link = self.link(slot, deadline).await?;
        let mut sending = Sending::Shared;
        for _ in 0..MAX_TRIES {
            let reply = link.call(deadline, std::mem::take(&mut sending), request).await?;
            let RedisReply::Error(error) = reply else { return Ok((reply, link)) };
            match (self.classify_error(&error, &link), script) {
                (ErrorReply::NoScript, Some(source)) => load_script(&link, source, deadline).await?,
                (refusal, _) => link = self.handle_error(refusal, error, link, &mut sending).await?,
            }
        }
        Err(refused(&link, "too many redirects for one slot"))
    }

    /// The server to retry on after an error reply that guarantees nothing was executed, or the error to return.
    async fn handle_error(
        &self,
        refusal: ErrorReply,
        error: String,
        link: Arc<RedisLink>,
        sending: &mut Sending,
    ) -> Result<Arc<RedisLink>, StoreError> {
        match refusal {
            ErrorReply::Moved { slot, to } => Ok(self.follow(Some(slot), to, link)),
            ErrorReply::Ask { to } => {
                *sending = Sending::Asking;
                Ok(self.follow(None, to, link))
            }
            ErrorReply::TryAgain => {
                *sending = Sending::Alone;
                sleep(TRYAGAIN_DELAY).await;
                Ok(link)
            }
            ErrorReply::ReadOnly => {
                link.close_connection("it has become a replica");
                self.request_refresh();
                Err(refused(&link, &error))
            }
            ErrorReply::ClusterMember => {
                Err(refused(&link, "it is part of a cluster: write redis+cluster://"))
            }
            ErrorReply::NotReady => {
                self.request_refresh();
                Err(link.unreachable(error))
            }
            ErrorReply::ClusterDown => {
                self.request_refresh();
                Err(link.unreachable(format!("{error} ({FULL_COVERAGE_HINT})")))
            }
            ErrorReply::NoScript | ErrorReply::Other => Err(refused(&link, &error)),
        }
    }

    fn follow(&self, moved: Option<u16>, to: Endpoint, from: Arc<RedisLink>) -> Arc<RedisLink> {
        match self {
            Topology::Single(_) => from,
            Topology::Cluster(cluster) => cluster.redirect(moved, to),
        }
    }

    fn request_refresh(&self) {
        if let Topology::Cluster(cluster) = self {
            cluster.request_refresh();
        }
    }

    fn classify_error(&self, error: &str, link: &RedisLink) -> ErrorReply {
        let mut words = error.split_whitespace();
        let code = words.next().unwrap_or_default();
        let slot = words.next();
        let to = words.next();
        // Only a cluster can redirect.
        let to = to.filter(|_| matches!(self, Topology::Cluster(_)));
        let to = to.and_then(|to| parse_redirect(to, link.server()));
        let slot = slot.and_then(|slot| slot.parse().ok());
        match (code, slot, to) {
            ("NOSCRIPT", ..) => ErrorReply::NoScript,
            ("MOVED", Some(slot), Some(to)) => ErrorReply::Moved { slot, to },
            ("MOVED" | "ASK", _, None) => ErrorReply::ClusterMember,
            ("ASK", _, Some(to)) => ErrorReply::Ask { to },
            ("TRYAGAIN", ..) => ErrorReply::TryAgain,
            ("READONLY", ..) => ErrorReply::ReadOnly,
            ("CLUSTERDOWN", ..) if error.contains("cluster is down") => ErrorReply::ClusterDown,
            ("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY", ..) => ErrorReply::NotReady,
            _ => ErrorReply::Other,
        }
    }
}

/// The endpoint in a redirect; without a host it is that of the server that replied.
fn parse_redirect(to: &str, source: &str) -> Option<Endpoint> {
    let source = parse_host(source, 0).ok()?;
    let (host, port) = to.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(endpoint_of(host, port.parse().ok()?, &source))
}

async fn load_script(link: &RedisLink, source: &str, deadline: Instant) -> Result<(), StoreError> {
    let load = encode_command(&["SCRIPT", "LOAD", source]);
    match link.call(deadline, Sending::Alone, LinkRequest::Command(&load)).await? {
        RedisReply::Error(error) => Err(refused(link, &error)),
        _ => Ok(()),
    }
}

pub(super) fn refused(link: &RedisLink, reason: &str) -> StoreError {
    script::refused_call(link.server(), reason)
}

impl From<SendError> for String {
    fn from(not_sent: SendError) -> String {
        match not_sent {
            SendError::Full => "too many requests in flight".to_owned(),
            SendError::Closed(reason) => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_without_a_host_stays_on_the_same_server() {
        let tcp = |host: &str, port| Some(Endpoint::Tcp { host: host.to_owned(), port });
        assert_eq!(parse_redirect("10.0.0.1:7001", "a:7000"), tcp("10.0.0.1", 7001));
        assert_eq!(parse_redirect(":7001", "a:7000"), tcp("a", 7001));
        assert_eq!(parse_redirect("::1:7001", "a:7000"), tcp("::1", 7001));
        assert_eq!(parse_redirect("nowhere", "a:7000"), None);
    }
}
