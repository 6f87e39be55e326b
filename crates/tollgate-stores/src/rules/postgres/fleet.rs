//! Which server is written, and which is read.
//!
//! Written is the server that is not in recovery and has the latest timeline: a promoted standby is found by
//! itself, and an old primary that comes back is not written again. Read is the replica that answers first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use super::link::{Failure, Link, Manner, is_usable_after};
use super::tls::Tls;
use super::{Node, PostgresAddress, log};
use crate::rules::{DbError, Version};

const READ_DEADLINE: Duration = Duration::from_secs(5);
/// The nearest replica is looked for again after this: one that is far behind does not stay.
const CHOOSE_AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Fleet {
    nodes: Vec<Node>,
    manner: Manner,
    writer: Mutex<Option<Written>>,
    reader: Mutex<Option<(Arc<Link>, Instant)>>,
    /// The latest timeline that was ever written here.
    timeline: AtomicU32,
}

#[derive(Debug)]
struct Written {
    link: Link,
    timeline: u32,
}

/// How far the node that is read is behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lag {
    pub node: String,
    /// In changes; `None` while no primary answers.
    pub changes: Option<u64>,
    /// Why the primary cannot be written.
    pub write_trouble: Option<String>,
}

/// A server as it was found.
struct Found {
    link: Link,
    state: log::State,
    took: Duration,
}

impl Fleet {
    /// Reads the certificates that the address names.
    pub(super) fn new(address: PostgresAddress) -> Result<Fleet, DbError> {
        let PostgresAddress { nodes, trust, root, password_file } = address;
        let tls = trust.map(|trust| Tls::new(trust, root.as_deref())).transpose();
        let tls = tls.map_err(|why| DbError::Unreadable { place: "the rules database".to_owned(), why })?;
        let manner = Manner { tls, password_file };
        let (writer, reader) = (Mutex::default(), Mutex::default());
        Ok(Fleet { nodes, manner, writer, reader, timeline: AtomicU32::new(0) })
    }

    /// The connection for changes, for one caller at a time.
    pub(super) async fn writer(&self) -> Result<Writer<'_>, DbError> {
        let mut held = self.writer.lock().await;
        if held.as_ref().is_none_or(|written| written.link.client.is_closed()) {
            let found = self.find_primary().await?;
            *held = Some(Written { link: found.link, timeline: found.state.timeline });
        }
        Ok(Writer { held })
    }

    /// A connection of its own to the primary.
    pub(super) async fn new_writer(&self) -> Result<Link, DbError> {
        self.find_primary().await.map(|found| found.link)
    }

    async fn find_primary(&self) -> Result<Found, DbError> {
        let (found, mut troubles) = self.ask_all().await;
        let latest = self.timeline.load(Ordering::Relaxed);
        let mut primary: Option<Found> = None;
        for one in found {
            let standing = |found: &Found| (found.state.timeline, found.state.last);
            if one.state.in_recovery {
                troubles.push(format!("{} is a standby", one.link.name));
            } else if one.state.timeline < latest {
                troubles.push(format!("{} is an old primary: another was promoted", one.link.name));
            } else if primary.as_ref().is_none_or(|best| standing(best) < standing(&one)) {
                primary = Some(one);
            }
        }
        let unwritable = || {
            let troubles = troubles.join("; ");
            let why = format!(
                "edits are not possible until the primary is back or a standby is promoted ({troubles})"
            );
            DbError::Unwritable { place: "the rules database".to_owned(), why }
        };
        let primary = primary.ok_or_else(unwritable)?;
        self.timeline.fetch_max(primary.state.timeline, Ordering::Relaxed);
        Ok(primary)
    }

    /// The connection for reads, shared.
    pub(super) async fn reader(&self) -> Result<Arc<Link>, DbError> {
        let mut held = self.reader.lock().await;
        if let Some((link, since)) = &*held
            && !link.client.is_closed()
            && since.elapsed() < CHOOSE_AGAIN
        {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(self.new_reader().await?);
        *held = Some((Arc::clone(&link), Instant::now()));
        Ok(link)
    }

    /// A connection of its own to the nearest live replica; to the primary where there is none.
    pub(super) async fn new_reader(&self) -> Result<Link, DbError> {
        let (found, troubles) = self.ask_all().await;
        let best = found.into_iter().min_by_key(|found| {
            (!found.state.ready, std::cmp::Reverse(found.state.timeline), !found.link.replica, found.took)
        });
        let why = || DbError::Unreadable { place: "the rules database".to_owned(), why: troubles.join("; ") };
        best.map(|found| found.link).ok_or_else(why)
    }

    async fn ask_all(&self) -> (Vec<Found>, Vec<String>) {
        let asking = self.nodes.iter().map(|node| async move {
            let ask = async {
                let link = Link::connect(node, &self.manner).await?;
                let start = Instant::now();
                let state = log::state(&link.client).await.map_err(|error| super::link::why(&error))?;
                Ok(Found { link, state, took: start.elapsed() })
            };
            let answer =
                timeout(READ_DEADLINE, ask).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            answer.map_err(|why| format!("{}: {why}", node.name))
        });
        let (mut found, mut troubles) = (Vec::new(), Vec::new());
        for answer in join_all(asking).await {
            match answer {
                Ok(one) => found.push(one),
                Err(trouble) => troubles.push(trouble),
            }
        }
        (found, troubles)
    }

    /// Reads; where the server is gone, once more from another.
    pub(super) async fn read<T, F>(&self, job: impl Fn(Arc<Link>) -> F) -> Result<T, DbError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let link = self.reader().await?;
        let failure = match timeout(READ_DEADLINE, job(Arc::clone(&link))).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(Failure::Refused(error))) => return Err(error),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Slow,
        };
        if matches!(&failure, Failure::Server(error) if is_usable_after(error)) {
            return Err(link.told(failure));
        }
        self.forget(&link).await;
        let link = self.reader().await?;
        match timeout(READ_DEADLINE, job(Arc::clone(&link))).await {
            Ok(done) => done.map_err(|failure| link.told(failure)),
            Err(_) => Err(link.told(Failure::Slow)),
        }
    }

    async fn forget(&self, link: &Arc<Link>) {
        let mut held = self.reader.lock().await;
        if held.as_ref().is_some_and(|(held, _)| Arc::ptr_eq(held, link)) {
            *held = None;
        }
    }

    pub(super) async fn lag(&self) -> Result<Lag, DbError> {
        let read: Version = self.read(|link| async move { log::last(&link.client).await }).await?;
        let node = self.reader().await?.name.clone();
        let primary = match self.writer().await {
            Ok(mut writer) => match timeout(READ_DEADLINE, log::last(writer.client())).await {
                Ok(Ok(last)) => Ok(last),
                Ok(Err(failure)) => Err(writer.lost(failure)),
                Err(_) => Err(writer.lost(Failure::Slow)),
            },
            Err(error) => Err(error),
        };
        let write_trouble = primary.as_ref().err().map(ToString::to_string);
        let changes = primary.ok().map(|last| last.number().saturating_sub(read.number()));
        Ok(Lag { node, changes, write_trouble })
    }
}

/// The right to write.
pub(super) struct Writer<'f> {
    held: MutexGuard<'f, Option<Written>>,
}

impl Writer<'_> {
    fn written(&mut self) -> &mut Written {
        self.held.as_mut().expect("it was connected when the right was given")
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.written().link.client
    }

    pub(super) fn timeline(&mut self) -> u32 {
        self.written().timeline
    }

    /// Nothing was written; a server that is gone is looked for again by the next caller.
    pub(super) fn lost(mut self, failure: Failure) -> DbError {
        let place = self.written().link.name.clone();
        let (why, usable) = match failure {
            Failure::Refused(error) => return error,
            Failure::Server(error) => (super::link::why(&error), is_usable_after(&error)),
            Failure::Slow => ("no answer in time".to_owned(), false),
        };
        if !usable {
            *self.held = None;
        }
        DbError::Unwritable { place, why }
    }

    pub(super) fn unknown(mut self) -> DbError {
        let place = self.written().link.name.clone();
        *self.held = None;
        DbError::Unknown { place }
    }
}
