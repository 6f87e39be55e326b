//! Loads the whole database and puts it in force, without ever having all of it in memory as text.
//!
//! One thread reads the database, [`PARSERS`] parse rules, and one applies them. Batches stay in order: batch n goes
//! through parser n modulo [`PARSERS`], so that every node leaves out the same rules where not all fit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tollgate::Time;
use tollgate::internal::policy::{self, AllowSource, PolicyDraft, PolicySnapshot};
use tollgate::internal::rule::{Rule, RuleId};
use tollgate_stores::rules::{
    ChangeLogEntry, DbError, ItemChange, ItemId, ItemKind, RulesDb, StoredItem, Version,
};

use crate::allocator;
use crate::gate::Gate;
use crate::ramp::RampInForce;
use crate::rules_follower::apply::{self, PolicyUpdate};
use crate::rules_follower::{NodeCapabilities, RulesFollower};

/// Batches per parser that are read ahead of those being parsed or applied.
const READ_AHEAD_BATCHES: usize = 2;
const PARSERS: usize = 2;
/// How often the progress of a long load is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// A load without progress for this long has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// This many of the latest changes are read for the predecessors of rules.
const RECENT_CHANGES: usize = 1_000;

/// Receives a batch, and the total number of items.
pub(super) type BatchSink = Box<dyn FnMut(Vec<StoredItem>, u64) + Send>;

/// Input from the database or its copy.
struct LoadStream {
    batches: RoundRobin<Receiver<LoadMessage<ParsedItem>>>,
    source: &'static str,
}

enum LoadMessage<T> {
    Batch(Vec<T>, u64),
    End(Result<Version, DbError>),
}

/// An item of the database; a rule is parsed already.
enum ParsedItem {
    Rule(ItemId, Result<Rule, String>),
    Other(ItemId, String),
}

impl ParsedItem {
    fn of(stored: StoredItem) -> ParsedItem {
        let StoredItem { item, text, .. } = stored;
        match item.kind {
            ItemKind::Rule => {
                let rule = apply::parse_rule(&text).map_err(|problems| problems.to_string());
                ParsedItem::Rule(item, rule)
            }
            _ => ParsedItem::Other(item, text),
        }
    }
}

/// Puts everything in force atomically; after an error nothing has changed.
pub(super) async fn load(
    follower: &RulesFollower,
    gate: &Arc<Gate>,
    db: &RulesDb,
) -> Result<Version, DbError> {
    // At a start, counters may exist that were made under earlier limits; the log has these limits.
    let recent_changes = if follower.is_ready() { Vec::new() } else { db.log(None, RECENT_CHANGES).await? };
    let source = db.clone();
    let (cancel_on_drop, cancelled) = oneshot::channel::<()>();
    let read = move |each: BatchSink| {
        let stopping = || DbError::Unreadable {
            location: "the rules database".to_owned(),
            why: "the node is stopping".to_owned(),
        };
        Handle::current().block_on(async {
            tokio::select! {
                version = source.load(each) => version,
                _ = cancelled => Err(stopping()),
            }
        })
    };
    let version = load_from(follower, gate, "rules database", recent_changes, read).await;
    drop(cancel_on_drop); // a stop does not wait for the rest
    version
}

/// Puts everything that `read` yields in force atomically.
pub(super) async fn load_from(
    follower: &RulesFollower,
    gate: &Arc<Gate>,
    source: &'static str,
    recent_changes: Vec<ChangeLogEntry>,
    read: impl FnOnce(BatchSink) -> Result<Version, DbError> + Send + 'static,
) -> Result<Version, DbError> {
    let mut batches = Vec::with_capacity(PARSERS);
    let mut loaded = Vec::with_capacity(PARSERS);
    for _ in 0..PARSERS {
        let (sender, unparsed) = sync_channel(READ_AHEAD_BATCHES);
        let (parsed, receiver) = sync_channel(READ_AHEAD_BATCHES);
        batches.push(sender);
        loaded.push(receiver);
        spawn_blocking(move || parse(&unparsed, &parsed));
    }
    // On a blocking thread: it waits if rules are applied more slowly than they are read.
    spawn_blocking(move || {
        let read_ahead = RoundRobin::new(batches);
        let each = read_ahead.clone();
        let end = read(Box::new(move |batch, total| _ = each.next().send(LoadMessage::Batch(batch, total))));
        read_ahead.next().send(LoadMessage::End(end)).ok();
    });
    let applied_gate = Arc::clone(gate);
    let capabilities = follower.capabilities.clone();
    let stream = LoadStream { batches: RoundRobin::new(loaded), source };
    let applied = spawn_blocking(move || apply_load(&applied_gate, &capabilities, &stream, recent_changes));
    let unreadable = |why: String| DbError::Unreadable { location: follower.name.clone(), why };
    let LoadedItems { version, left_out, ramp } =
        applied.await.map_err(|error| unreadable(error.to_string()))??;
    {
        let mut state = follower.state();
        state.left_out = left_out;
        state.pending_edits.loaded(version);
    }
    follower.set_ramp(ramp);
    follower.apply_pending_edits(gate);
    spawn_blocking(allocator::use_huge_pages); // not awaited: the rules are in force without it
    Ok(version)
}

/// Round-robin over channels; clones share the position.
#[derive(Clone)]
struct RoundRobin<T> {
    all: Vec<T>,
    next_index: Arc<AtomicUsize>,
}

impl<T> RoundRobin<T> {
    fn new(all: Vec<T>) -> RoundRobin<T> {
        RoundRobin { all, next_index: Arc::default() }
    }

    fn next(&self) -> &T {
        // Relaxed: only one thread at a time uses the index.
        &self.all[self.next_index.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }
}

/// Parses batches until the input ends or the receiver is gone.
fn parse(batches: &Receiver<LoadMessage<StoredItem>>, parsed: &SyncSender<LoadMessage<ParsedItem>>) {
    for loaded in batches {
        let next = match loaded {
            LoadMessage::Batch(batch, total) => {
                LoadMessage::Batch(batch.into_iter().map(ParsedItem::of).collect(), total)
            }
            LoadMessage::End(end) => LoadMessage::End(end),
        };
        if parsed.send(next).is_err() {
            return;
        }
    }
}

/// Why a load leaves the policy unchanged.
enum LoadAbort {
    Unchanged,
    Failed(DbError),
}

type LeftOut = BTreeMap<ItemId, String>;

/// What a load has put in force.
struct LoadedItems {
    version: Version,
    left_out: LeftOut,
    ramp: Option<RampInForce>,
}

fn apply_load(
    gate: &Gate,
    capabilities: &NodeCapabilities,
    stream: &LoadStream,
    recent_changes: Vec<ChangeLogEntry>,
) -> Result<LoadedItems, DbError> {
    let mut left_out = LeftOut::new();
    let mut ramp = None;
    let mut version = Version::ZERO;
    let now = gate.now();
    let mut bans = gate.engine.load_bans();
    let revised = gate.engine.revise(|old| {
        let mut stale = in_force(old);
        let mut update = PolicyUpdate::new(gate, capabilities, old.draft(), now);
        version = receive_batches(stream, |parsed| {
            let (item, put) = match parsed {
                ParsedItem::Rule(item, rule) => {
                    let put = update.put_parsed(&item, rule);
                    (item, put)
                }
                ParsedItem::Other(item, text) if item.kind == ItemKind::Ban => {
                    let put = apply::put_ban(gate, &item, &text, |key, ban| bans.put(key, ban, now));
                    (item, put)
                }
                ParsedItem::Other(item, text) => {
                    let put = update.put(&item, &text);
                    (item, put)
                }
            };
            if !stale.is_empty() {
                stale.remove(&item); // an empty set would compute the hash all the same
            }
            left_out.extend(put.err().map(|why| (item, why)));
        })
        .map_err(LoadAbort::Failed)?;
        stale.iter().for_each(|item| _ = update.remove(item));
        ramp = update.take_ramp();
        let mut draft = update.finish().ok_or(LoadAbort::Unchanged)?;
        replay_edits(&mut draft, recent_changes, version, ramp.as_ref());
        Ok(draft.finish())
    });
    if let Err(LoadAbort::Failed(error)) = revised {
        return Err(error);
    }
    bans.finish(now);
    allocator::trim();
    Ok(LoadedItems { version, left_out, ramp })
}

/// The items of the database in force before, except bans: those that do not come again are removed.
fn in_force(policy: &PolicySnapshot) -> HashSet<ItemId> {
    let rules =
        policy.rules().iter().filter(|rule| rule.is_added()).map(|rule| ItemId::rule(rule.id.as_str()));
    let allowed = policy.allow_list().filter(|(_, source)| *source == AllowSource::Change);
    let allowed = allowed.map(|(key, _)| ItemId::new(ItemKind::Allow, key.to_string()));
    rules.chain(allowed).chain([ItemId::enforce()]).collect()
}

/// Receives batches, and logs the progress of a long load.
fn receive_batches(stream: &LoadStream, mut each: impl FnMut(ParsedItem)) -> Result<Version, DbError> {
    let source = stream.source;
    let start = Instant::now();
    let mut last_progress = Instant::now();
    let mut count = 0;
    loop {
        match stream.batches.next().recv_timeout(STALL_TIMEOUT) {
            Ok(LoadMessage::Batch(batch, total)) => {
                count += batch.len() as u64;
                batch.into_iter().for_each(&mut each);
                if last_progress.elapsed() >= PROGRESS_INTERVAL {
                    last_progress = Instant::now();
                    let percent = (100 * count).checked_div(total).unwrap_or(100).min(100);
                    tracing::info!("{source}: {count} of {total} read ({percent} %)");
                }
            }
            Ok(LoadMessage::End(end)) => {
                let version = end?;
                let took = start.elapsed().as_secs_f64();
                tracing::info!("{source}: {count} read in {took:.1} s, version {version}");
                return Ok(version);
            }
            Err(error) => {
                let why = match error {
                    RecvTimeoutError::Timeout => "reading the database has stalled",
                    RecvTimeoutError::Disconnected => "reading has ended early",
                };
                return Err(DbError::Unreadable { location: format!("the {source}"), why: why.to_owned() });
            }
        }
    }
}

/// Replays the logged edits of recently edited rules, so that each rule has its predecessors (counters of earlier
/// limits). The rules of a ramp are in force as it says, not as they were written last.
fn replay_edits(
    draft: &mut PolicyDraft,
    recent_changes: Vec<ChangeLogEntry>,
    version: Version,
    ramp: Option<&RampInForce>,
) {
    let mut edits_by_rule: HashMap<RuleId, Vec<ChangeLogEntry>> = HashMap::new();
    for logged in recent_changes.into_iter().rev() {
        let ItemChange { item, version: at, .. } = &logged.change;
        if let Some(id) = RuleId::new(&item.name).filter(|_| item.kind == ItemKind::Rule && *at <= version) {
            edits_by_rule.entry(id).or_default().push(logged);
        }
    }
    // A rule that is not in force was left out or removed: it needs no predecessors.
    let is_ramped = |id: &RuleId| ramp.is_some_and(|ramp| ramp.rule(id.as_str()).is_some());
    edits_by_rule.retain(|id, _| {
        !is_ramped(id) && draft.policy().rule(id.as_str()).is_some_and(|rule| rule.is_added())
    });
    for (id, edits) in edits_by_rule {
        draft.apply(policy::PolicyChange::Remove(id.clone()), Time::EPOCH).ok();
        // The rule before its first logged edit, then each edit in order.
        let original = edits.first().and_then(|first| Some((first.before.as_deref()?, first.at)));
        let later = edits.iter().map(|logged| (logged.change.text.as_deref(), logged.at));
        for (text, at) in original.map(|(text, at)| (Some(text), at)).into_iter().chain(later) {
            let rule = text.and_then(|text| apply::parse_rule(text).ok());
            let step =
                rule.map_or_else(|| policy::PolicyChange::Remove(id.clone()), policy::PolicyChange::Put);
            // A step that fails only loses its predecessors: the last one is in force, so it fits.
            draft.apply(step, at).ok();
        }
    }
}
