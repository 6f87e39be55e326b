//! The thread that writes the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use tollgate::{Clock, Time};

use super::episodes::Episodes;
use super::line::Lines;
use super::output::Output;
use super::{DecisionLogCounts, DecisionRecord, Sample};

/// How long a decision may wait to be read from the queue.
const POLL: Duration = Duration::from_millis(10);
/// How often ended episodes and moved files are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Lines are written when they have this many bytes, or when the queue is empty.
const CHUNK: usize = 64 << 10;

pub(super) struct Writer {
    sample: Sample,
    output: Output,
    counts: Arc<DecisionLogCounts>,
    episodes: Episodes,
    lines: Lines,
    is_failing: bool,
}

impl Writer {
    pub(super) fn new(sample: Sample, output: Output, counts: Arc<DecisionLogCounts>) -> Writer {
        Writer {
            sample,
            output,
            counts,
            episodes: Episodes::default(),
            lines: Lines::default(),
            is_failing: false,
        }
    }

    /// Runs until the log is closed or dropped, and the queue is empty.
    pub(super) fn run(&mut self, queue: &Receiver<DecisionRecord>, is_closing: &AtomicBool, clock: &Clock) {
        let mut checked_at = clock.now();
        loop {
            // Before the queue is read: what was enqueued before is written.
            let is_last = is_closing.load(Ordering::Acquire);
            let is_disconnected = self.drain(queue);
            let now = clock.now();
            if is_last || is_disconnected {
                self.episodes.end_all(now, &mut self.lines);
                return self.flush();
            }
            if now.since(checked_at) >= HOUSEKEEPING {
                checked_at = now;
                self.keep_house(now);
            }
            self.flush();
            thread::park_timeout(POLL);
        }
    }

    /// Reads the queue until it is empty; returns whether nothing can follow.
    fn drain(&mut self, queue: &Receiver<DecisionRecord>) -> bool {
        loop {
            match queue.try_recv() {
                Ok(record) => self.write(&record),
                Err(ended) => return ended == TryRecvError::Disconnected,
            }
        }
    }

    fn write(&mut self, record: &DecisionRecord) {
        match self.sample {
            Sample::Denied => self.episodes.deny(record, &mut self.lines),
            Sample::All | Sample::Keys(_) => self.lines.decision(record),
        }
        if self.lines.bytes.len() >= CHUNK {
            self.flush();
        }
    }

    fn keep_house(&mut self, now: Time) {
        self.episodes.end_quiet(now, &mut self.lines);
        if let Err(error) = self.output.reopen_if_moved()
            && !self.is_failing
        {
            tracing::error!(%error, "the decision log cannot be created again: it goes on in the file that was moved");
        }
    }

    fn flush(&mut self) {
        if self.lines.count == 0 {
            return;
        }
        let written = self.output.write(&self.lines.bytes);
        let count = if written.is_ok() { &self.counts.lines } else { &self.counts.dropped };
        count.fetch_add(self.lines.count, Ordering::Relaxed);
        match (&written, self.is_failing) {
            (Err(error), false) => {
                tracing::error!(%error, "the decision log cannot be written: lines are dropped")
            }
            (Ok(()), true) => tracing::info!("the decision log is written again"),
            _ => {}
        }
        self.is_failing = written.is_err();
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use tollgate::internal::engine::LoggedKey;
    use tollgate::internal::rule::RuleId;
    use tollgate::internal::verdict::{Reason, VerdictId};
    use tollgate_testkit::Folder;

    use super::super::LogTarget;
    use super::*;

    fn record(allowed: bool) -> DecisionRecord {
        DecisionRecord {
            id: VerdictId { node: 1, generation: 1, sequence: 1 },
            at: Time::from_secs(1_800_000_000),
            allowed,
            reason: if allowed { Reason::Ok } else { Reason::Limit },
            rule: RuleId::new("r"),
            limit: None,
            key: LoggedKey::Plain("user:\"\n\u{0}</script>".into()),
            cost: 1,
            remaining: None,
            retry_after: None,
            trace: None,
            charged: Vec::new(),
        }
    }

    /// The lines and the number of dropped ones after these decisions.
    fn check(target: LogTarget, sample: Sample, decisions: &[bool]) -> (u64, u64) {
        let counts = Arc::new(DecisionLogCounts::default());
        let mut writer = Writer::new(sample, Output::open(&target).expect("it opens"), Arc::clone(&counts));
        let (queue, waiting) = mpsc::sync_channel(decisions.len());
        decisions.iter().for_each(|allowed| queue.try_send(record(*allowed)).expect("room"));
        drop(queue);
        writer.run(&waiting, &AtomicBool::new(false), &Clock::manual(Time::from_secs(1_800_000_001)));
        (counts.lines.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed))
    }

    #[test]
    fn what_is_in_the_queue_is_written_at_the_end() {
        let folder = Folder::new();
        let path = folder.path("log");
        let target = || LogTarget::File(path.clone());
        assert_eq!(check(target(), Sample::All, &[true, false, true]), (3, 0));
        let text = fs::read_to_string(&path).expect("a file");
        assert_eq!(text.lines().count(), 3, "a key has no line feed: {text}");
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(line["key"], "user:\"\n\u{0}</script>");
        }
        assert_eq!(check(target(), Sample::Denied, &[false; 100]), (5, 0));
    }

    #[test]
    fn lines_that_a_full_disk_rejects_are_counted() {
        let full = LogTarget::File("/dev/full".into());
        assert_eq!(check(full, Sample::All, &[true; 100_000]), (0, 100_000));
    }
}
