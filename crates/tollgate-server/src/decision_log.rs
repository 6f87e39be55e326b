//! The decision log: verdicts as lines of JSON.
//!
//! A decision is put into a bounded queue and written by a thread of its own. If the queue is full, the decision is
//! dropped and counted: no request waits for a disk or a pipe. The thread polls the queue, because waking it would cost
//! a request a system call.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{fmt, io};

use tollgate::internal::algorithm::Quota;
use tollgate::internal::engine::LoggedKey;
use tollgate::internal::fingerprint::Fingerprint;
use tollgate::internal::lock;
use tollgate::internal::rule::RuleId;
use tollgate::internal::verdict::{Reason, VerdictId};
use tollgate::internal::{EngineCore, EngineVerdict, Limit, hit};
use tollgate::{Clock, Time};

mod episodes;
mod fleet_marks;
mod line;
mod output;
mod writer;

use crate::insight::Decided;
use crate::trace_id::TraceId;
pub use fleet_marks::FleetMarks;
use output::Output;
use writer::Writer;

/// Decisions that wait to be written.
const QUEUE: usize = 16_384;
/// How long a stop waits for the last lines.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecisionLogConfig {
    pub to: LogTarget,
    pub sample: Sample,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogTarget {
    Stderr,
    File(PathBuf),
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTarget::Stderr => f.write_str("stderr"),
            LogTarget::File(path) => path.display().fmt(f),
        }
    }
}

/// Which decisions are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// The first denials of a key, then the beginning and the end of its limiting.
    Denied,
    All,
    /// All decisions of this percentage of the keys.
    Keys(u8),
}

/// Totals, which outlive a log that a reload replaces.
#[derive(Default)]
pub struct DecisionLogCounts {
    pub lines: AtomicU64,
    /// Decisions or lines that are missing.
    pub dropped: AtomicU64,
}

/// An open log. Dropping it ends its thread after the last line.
pub struct DecisionLog {
    config: DecisionLogConfig,
    /// `None` if each node marks keys under a secret of its own.
    fleet_marks: Option<FleetMarks>,
    queue: SyncSender<DecisionRecord>,
    counts: Arc<DecisionLogCounts>,
    thread: WriterThread,
}

struct WriterThread {
    handle: Thread,
    is_closing: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

/// One decision, as it waits to be written.
struct DecisionRecord {
    id: VerdictId,
    at: Time,
    allowed: bool,
    reason: Reason,
    rule: Option<RuleId>,
    limit: Option<Limit>,
    key: LoggedKey,
    cost: u64,
    remaining: Option<u64>,
    retry_after: Option<Duration>,
    trace: Option<TraceId>,
    /// Empty unless all decisions of a key are written.
    charged: Vec<LoggedCharge>,
}

/// What an admitted request has charged to one limit, for `tollgate verify`.
struct LoggedCharge {
    /// The node that charged, whose id survives a restart with its state.
    node: u32,
    rule: RuleId,
    limit: Limit,
    mark: ChargeMark,
    /// When it counts as made.
    at: Time,
    cost: u64,
}

/// The key under the rule.
#[derive(Clone, Copy)]
enum ChargeMark {
    /// Under the secret of the node.
    Node(Fingerprint),
    /// Under a secret that nodes share, with the id of that secret.
    Fleet { secret: u32, mark: u64 },
}

impl LoggedCharge {
    /// The charges of a verdict, except those to a node's share of a limit.
    fn of(verdict: &EngineVerdict, engine: &EngineCore, marks: Option<&FleetMarks>) -> Vec<LoggedCharge> {
        let node = engine.secret().fingerprint(["decision log"]).to_bits() as u32;
        let whole = verdict
            .charged()
            .filter(|(limit, item)| verdict.allowed && item.quota == Quota::new(&limit.limit));
        whole
            .map(|(limit, item)| LoggedCharge {
                node,
                rule: limit.rule.id.clone(),
                limit: *limit.limit,
                mark: match (marks, &item.counter) {
                    (Some(marks), Some(counter)) => marks.of(&counter.id),
                    _ => ChargeMark::Node(limit.key_mark()),
                },
                at: item.grant.at,
                cost: item.grant.cost,
            })
            .collect()
    }
}

impl DecisionLog {
    /// Opens the log and starts its thread.
    pub fn open(
        config: DecisionLogConfig,
        fleet_marks: Option<FleetMarks>,
        counts: &Arc<DecisionLogCounts>,
    ) -> io::Result<DecisionLog> {
        let output = Output::open(&config.to)?;
        let (queue, waiting) = mpsc::sync_channel(QUEUE);
        let (running, ended) = mpsc::channel();
        let is_closing = Arc::new(AtomicBool::new(false));
        let mut writer = Writer::new(config.sample, output, Arc::clone(counts));
        let stop = Arc::clone(&is_closing);
        let run = move || {
            let _running: mpsc::Sender<()> = running;
            writer.run(&waiting, &stop, &Clock::new());
        };
        let handle = thread::Builder::new().name("decision-log".to_owned()).spawn(run)?.thread().clone();
        let thread = WriterThread { handle, is_closing, ended: Mutex::new(ended) };
        Ok(DecisionLog { config, fleet_marks, queue, counts: Arc::clone(counts), thread })
    }

    pub fn config(&self) -> &DecisionLogConfig {
        &self.config
    }

    /// Enqueues a decision if the sample includes it. Never blocks.
    pub fn record(&self, engine: &EngineCore, decided: &Decided<'_, '_>, trace: Option<TraceId>) {
        let Decided { policy, hit, verdict, at, .. } = *decided;
        if verdict.allowed && self.config.sample == Sample::Denied {
            return;
        }
        let key = engine.logged_key(policy, hit, verdict);
        if let Sample::Keys(percent) = self.config.sample
            && !is_sampled(&key, percent)
        {
            return;
        }
        let reported = verdict.reported();
        let record = DecisionRecord {
            id: verdict.id,
            at,
            allowed: verdict.allowed,
            reason: verdict.reason,
            rule: reported.map(|limit| limit.rule.id.clone()),
            limit: reported.map(|limit| *limit.limit),
            key,
            cost: hit::cost(hit),
            remaining: reported.map(|limit| limit.remaining()),
            retry_after: verdict.retry_after,
            trace,
            charged: match self.config.sample {
                Sample::Denied => Vec::new(),
                Sample::All | Sample::Keys(_) => LoggedCharge::of(verdict, engine, self.fleet_marks.as_ref()),
            },
        };
        if self.queue.try_send(record).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes the last lines. Lines that cannot be written in time are lost: a pipe may be blocked.
    pub fn close(&self) {
        self.thread.is_closing.store(true, Ordering::Release);
        self.thread.handle.unpark();
        let ended = lock(&self.thread.ended);
        if ended.recv_timeout(CLOSE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the last lines of the decision log could not be written in time");
        }
    }
}

/// Whether a key belongs to a percentage of all keys: the same keys each time. A decision without a key does not.
fn is_sampled(key: &LoggedKey, percent: u8) -> bool {
    let bits = match key {
        LoggedKey::None => return false,
        LoggedKey::Redacted(mark) => mark.to_bits(),
        LoggedKey::Plain(text) => {
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            let (first, _) = digest.as_ref().split_first_chunk().expect("a digest has 32 bytes");
            u64::from_le_bytes(*first)
        }
    };
    bits % 100 < u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_the_same_keys_each_time_and_a_larger_one_includes_them() {
        let plain = |n: u64| LoggedKey::Plain(format!("user:{n}").into());
        let marked =
            |n: u64| LoggedKey::Redacted(Fingerprint::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for key in [&plain as &dyn Fn(u64) -> LoggedKey, &marked] {
            let one: Vec<u64> = (0..20_000).filter(|n| is_sampled(&key(*n), 1)).collect();
            assert!((140..260).contains(&one.len()), "{} of 20,000", one.len());
            assert!(one.iter().all(|n| is_sampled(&key(*n), 5)));
            assert!((0..100).all(|n| is_sampled(&key(n), 100)));
        }
        assert!(!is_sampled(&LoggedKey::None, 100), "a decision without a key is in no sample of keys");
    }
}
