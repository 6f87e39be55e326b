//! One call for the counters of one slot, to whichever server keeps it.
//!
//! It is sent again only after an answer that says that nothing was done: the script is not loaded, the slot is
//! elsewhere, or the deadline had passed by the server's clock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::address::{Endpoint, Place, RedisAddress, parse_host};
use super::connection::NotSent;
use super::dial::{Manner, tls_config};
use super::link::{Link, Route};
use super::resp::{Reply, command, write_command};
use super::script::{self, Answer, Ask, Deed, Done, When};
use super::sentinels::Sentinels;
use super::slots::{Cluster, endpoint_of, slot_of};
use crate::counters::StoreError;

/// Answers that nothing was done, at the most, before it is given up.
const MAX_TRIES: usize = 8;
/// Answers that the deadline had passed, at the most.
const MAX_LATE: usize = 3;
/// Between two tries while a slot is on the move.
const MOVING: Duration = Duration::from_millis(2);
/// What to do about a cluster that refuses slots which are served.
const FULL_COVERAGE: &str = "with cluster-require-full-coverage no it serves the slots that it has";

pub(super) enum Topology {
    One(Arc<Link>),
    Cluster(Cluster),
}

/// A script beside the one that decides.
pub(super) struct Script {
    source: &'static str,
    /// The name by which the server knows it.
    sha: String,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Script {
        Script { source, sha: script::sha_of(source) }
    }
}

/// A call and its bounds.
pub(super) struct Call<'a> {
    pub(super) slot: u16,
    pub(super) deed: Deed,
    pub(super) when: When,
    pub(super) asks: &'a [Ask],
    pub(super) deadline: Instant,
}

/// An error reply that is more than a refusal.
#[derive(PartialEq, Eq, Debug)]
enum Refusal {
    NoScript,
    Moved {
        slot: u16,
        to: Endpoint,
    },
    Ask {
        to: Endpoint,
    },
    TryAgain,
    /// A cluster is asked as if it were one server.
    PartOfCluster,
    /// The server has become a replica.
    ReadOnly,
    /// The server will answer later: it loads its data, or runs something slow.
    NotReady,
    /// The server keeps the slot and refuses it, because another slot of the cluster is not served.
    ClusterDown,
    Other,
}

impl Topology {
    /// Connects in the background. Only certificates that cannot be read are an error.
    pub(super) fn open(address: RedisAddress) -> Result<Topology, String> {
        let tls = address.tls.as_ref().map(tls_config).transpose()?;
        let manner = |login, database| Manner { login, database, tls: tls.clone() };
        let store_manner = manner(address.login, address.database);
        Ok(match address.place {
            Place::Single(endpoint) => {
                Topology::One(Arc::new(Link::open(Route::Fixed(endpoint), store_manner, Arc::default())))
            }
            Place::Sentinel { sentinels, service } => {
                let manner = manner(address.sentinel_login, 0);
                let route = Route::Sentinels(Sentinels { sentinels, service, manner });
                Topology::One(Arc::new(Link::open(route, store_manner, Arc::default())))
            }
            Place::Cluster(seeds) => Topology::Cluster(Cluster::open(seeds, store_manner)),
        })
    }

    pub(super) async fn link(&self, slot: u16, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        match self {
            Topology::One(link) => Ok(Arc::clone(link)),
            Topology::Cluster(cluster) => cluster.link(slot, deadline).await,
        }
    }

    /// Makes the call; the answer comes with the name of the server that gave it.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<(Done, String), StoreError> {
        let Call { slot, deed, when, asks, deadline } = *call;
        let mut link = self.link(slot, deadline).await?;
        let (mut asking, mut late) = (false, 0);
        for _ in 0..MAX_TRIES {
            let until = link.clock().at(deadline);
            let write = |out: &mut Vec<u8>| script::write_call(out, deed, when, until, asks);
            let reply = link.call(deadline, std::mem::take(&mut asking), write).await?;
            let Reply::Error(error) = reply else {
                match script::read_answer(&reply, deed, asks) {
                    Some(Answer::Done(done)) => {
                        if when == When::Server {
                            link.clock().observe(done.now_us, Instant::now());
                        }
                        return Ok((done, link.server().to_owned()));
                    }
                    // Nothing was done. If there is time by our clock, the server's was not known well enough.
                    Some(Answer::TooLate { server_us }) => {
                        link.clock().observe(server_us, Instant::now());
                        late += 1;
                        if late < MAX_LATE && Instant::now() < deadline {
                            continue;
                        }
                        return Err(StoreError::Deadline { server: link.server().to_owned() });
                    }
                    None => {
                        return Err(refused(&link, "an answer that is not one of the script's"));
                    }
                }
            };
            match self.refusal(&error, &link) {
                Refusal::NoScript => load_script(&link, script::SOURCE, deadline).await?,
                refusal => link = self.after(refusal, error, link, &mut asking).await?,
            }
        }
        Err(refused(&link, "the slot moves from server to server"))
    }

    /// Sends a plain command about one slot, and follows redirects.
    pub(super) async fn command(
        &self,
        slot: u16,
        words: &[impl AsRef<[u8]>],
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let mut link = self.link(slot, deadline).await?;
        let mut asking = false;
        for _ in 0..MAX_TRIES {
            let write = |out: &mut Vec<u8>| write_command(out, words);
            let reply = link.call(deadline, std::mem::take(&mut asking), write).await?;
            let Reply::Error(error) = reply else { return Ok(reply) };
            link = self.after(self.refusal(&error, &link), error, link, &mut asking).await?;
        }
        Err(refused(&link, "the slot moves from server to server"))
    }

    /// Runs a script on keys of one slot, and follows redirects.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[impl AsRef<[u8]>],
        arguments: &[&[u8]],
        deadline: Instant,
    ) -> Result<(Reply, Arc<Link>), StoreError> {
        let first = keys.first().map_or(&b""[..], AsRef::as_ref);
        let slot = std::str::from_utf8(first).map_or(0, slot_of);
        let count = keys.len().to_string();
        let head = [b"EVALSHA", script.sha.as_bytes(), count.as_bytes()];
        let words: Vec<&[u8]> =
            head.into_iter().chain(keys.iter().map(AsRef::as_ref)).chain(arguments.iter().copied()).collect();
        let mut link = self.link(slot, deadline).await?;
        let mut asking = false;
        for _ in 0..MAX_TRIES {
            let write = |out: &mut Vec<u8>| write_command(out, &words);
            let reply = link.call(deadline, std::mem::take(&mut asking), write).await?;
            let Reply::Error(error) = reply else { return Ok((reply, link)) };
            match self.refusal(&error, &link) {
                Refusal::NoScript => load_script(&link, script.source, deadline).await?,
                refusal => link = self.after(refusal, error, link, &mut asking).await?,
            }
        }
        Err(refused(&link, "the slot moves from server to server"))
    }

    /// Who is asked next after a refusal that did nothing; an error if nobody is.
    async fn after(
        &self,
        refusal: Refusal,
        error: String,
        link: Arc<Link>,
        asking: &mut bool,
    ) -> Result<Arc<Link>, StoreError> {
        match refusal {
            Refusal::Moved { slot, to } => Ok(self.follow(Some(slot), to, link)),
            Refusal::Ask { to } => {
                *asking = true;
                Ok(self.follow(None, to, link))
            }
            Refusal::TryAgain => {
                sleep(MOVING).await;
                Ok(link)
            }
            Refusal::ReadOnly => {
                link.abandon("it has become a replica");
                self.outdated();
                Err(refused(&link, &error))
            }
            Refusal::PartOfCluster => Err(refused(&link, "it is part of a cluster: write redis+cluster://")),
            Refusal::NotReady => {
                self.outdated();
                Err(link.unreachable(error))
            }
            Refusal::ClusterDown => {
                self.outdated();
                Err(link.unreachable(format!("{error} ({FULL_COVERAGE})")))
            }
            Refusal::NoScript | Refusal::Other => Err(refused(&link, &error)),
        }
    }

    fn follow(&self, moved: Option<u16>, to: Endpoint, from: Arc<Link>) -> Arc<Link> {
        match self {
            Topology::One(_) => from,
            Topology::Cluster(cluster) => cluster.redirect(moved, to),
        }
    }

    fn outdated(&self) {
        if let Topology::Cluster(cluster) = self {
            cluster.outdated();
        }
    }

    fn refusal(&self, error: &str, link: &Link) -> Refusal {
        let mut words = error.split_whitespace();
        let (code, slot, to) = (words.next().unwrap_or_default(), words.next(), words.next());
        // A server that is not asked as a cluster has nowhere to send us.
        let to = to.filter(|_| matches!(self, Topology::Cluster(_)));
        let to = to.and_then(|to| named(to, link.server()));
        let slot = slot.and_then(|slot| slot.parse().ok());
        match (code, slot, to) {
            ("NOSCRIPT", ..) => Refusal::NoScript,
            ("MOVED", Some(slot), Some(to)) => Refusal::Moved { slot, to },
            ("MOVED" | "ASK", _, None) => Refusal::PartOfCluster,
            ("ASK", _, Some(to)) => Refusal::Ask { to },
            ("TRYAGAIN", ..) => Refusal::TryAgain,
            ("READONLY", ..) => Refusal::ReadOnly,
            ("CLUSTERDOWN", ..) if error.contains("cluster is down") => Refusal::ClusterDown,
            ("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY", ..) => Refusal::NotReady,
            _ => Refusal::Other,
        }
    }
}

/// The endpoint in a redirect; without a host it is the one that was asked.
fn named(to: &str, asked: &str) -> Option<Endpoint> {
    let asked = parse_host(asked, 0).ok()?;
    let (host, port) = to.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(endpoint_of(host, port.parse().ok()?, &asked))
}

async fn load_script(link: &Link, source: &str, deadline: Instant) -> Result<(), StoreError> {
    let load = command(&["SCRIPT", "LOAD", source]);
    match link.call(deadline, false, |out| out.extend_from_slice(&load)).await? {
        Reply::Error(error) => Err(refused(link, &error)),
        _ => Ok(()),
    }
}

pub(super) fn refused(link: &Link, reason: &str) -> StoreError {
    let reason = reason.split(" script: ").next().unwrap_or(reason).to_owned();
    StoreError::Refused { server: link.server().to_owned(), reason }
}

impl From<NotSent> for String {
    fn from(not_sent: NotSent) -> String {
        match not_sent {
            NotSent::Full => "too many requests under way".to_owned(),
            NotSent::Closed(reason) => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_without_a_host_stays_with_the_one_that_was_asked() {
        let tcp = |host: &str, port| Some(Endpoint::Tcp { host: host.to_owned(), port });
        assert_eq!(named("10.0.0.1:7001", "a:7000"), tcp("10.0.0.1", 7001));
        assert_eq!(named(":7001", "a:7000"), tcp("a", 7001));
        assert_eq!(named("::1:7001", "a:7000"), tcp("::1", 7001));
        assert_eq!(named("nowhere", "a:7000"), None);
    }
}
