//! Waiting for a client's bytes, a deadline or the shutdown, at little cost per request.
//!
//! The timer and the shutdown are polled once, and from then on only if the task is woken and there is nothing to read:
//! their wakers stay registered. A deadline that moves on does not touch the timer; when it fires too early, it is set
//! again.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::connection::{Shutdown, shutdown_requested};

pub struct ReadWatch {
    shutdown: Shutdown,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether the shutdown, and the timer if there is one, will wake the task.
    is_registered: bool,
}

#[derive(Debug)]
pub enum ReadEvent {
    /// Bytes were appended, or none at the end of the stream.
    Read(io::Result<usize>),
    DeadlinePassed,
    Stopped,
}

impl ReadWatch {
    pub fn new(shutdown: &Shutdown) -> ReadWatch {
        let mut watched = shutdown.clone();
        let stop = Box::pin(async move { shutdown_requested(&mut watched).await });
        ReadWatch { shutdown: shutdown.clone(), stop, timer: None, is_registered: false }
    }

    /// Appends what has arrived to the spare capacity of `input`.
    pub async fn read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        input: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> ReadEvent {
        self.follow(deadline);
        let mut is_first_poll = true;
        poll_fn(|cx| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(cx) {
                return Poll::Ready(ReadEvent::Read(read));
            }
            if std::mem::take(&mut is_first_poll) && self.is_quiet() {
                return Poll::Pending;
            }
            self.poll_rare(cx, deadline)
        })
        .await
    }

    /// Awaits `work` until the deadline; `None` if it passes.
    pub async fn within<F: Future>(
        &mut self,
        deadline: Option<Instant>,
        mut work: Pin<&mut F>,
    ) -> Option<F::Output> {
        self.follow(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            // Its waker stays registered.
            if self.is_registered && self.timer.as_ref().is_some_and(|timer| !timer.is_elapsed()) {
                return Poll::Pending;
            }
            ready!(self.poll_timer(cx, deadline));
            Poll::Ready(None)
        })
        .await
    }

    /// Whether neither the timer nor the shutdown has anything to report, and both will wake the task.
    fn is_quiet(&self) -> bool {
        let has_elapsed = self.timer.as_ref().is_some_and(|timer| timer.is_elapsed());
        self.is_registered && !has_elapsed && !self.shutdown.has_changed().unwrap_or(true)
    }

    /// Makes sure that the timer does not fire after the deadline.
    fn follow(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        match &mut self.timer {
            None => {
                self.timer = Some(Box::pin(sleep_until(deadline)));
                self.is_registered = false;
            }
            Some(timer) if timer.deadline() > deadline => {
                timer.as_mut().reset(deadline);
                self.is_registered = false;
            }
            Some(_) => {}
        }
    }

    fn poll_rare(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<ReadEvent> {
        self.is_registered = true;
        if self.stop.as_mut().poll(cx).is_ready() {
            self.stop = Box::pin(std::future::pending());
            return Poll::Ready(ReadEvent::Stopped);
        }
        ready!(self.poll_timer(cx, deadline));
        Poll::Ready(ReadEvent::DeadlinePassed)
    }

    /// Ready once the deadline has passed.
    fn poll_timer(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            match deadline {
                Some(deadline) if deadline <= now => return Poll::Ready(()),
                Some(deadline) => timer.as_mut().reset(deadline),
                None => timer.as_mut().reset(now + FAR),
            }
        }
    }
}

/// A timer without a deadline fires this late, and is set again.
const FAR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};
    use tokio::sync::watch;
    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn work_is_awaited_until_its_deadline() {
        let (_stop, shutdown) = watch::channel(false);
        let mut reads = ReadWatch::new(&shutdown);
        let begun = Instant::now();
        for within in [3, 4, 3] {
            let done = reads.within(Some(Instant::now() + within * SECOND), pin!(sleep(2 * SECOND))).await;
            assert!(done.is_some(), "{within}");
        }
        let never = std::future::pending::<()>();
        assert!(reads.within(Some(Instant::now() + 3 * SECOND), pin!(never)).await.is_none());
        let elapsed = begun.elapsed();
        assert!(elapsed >= 9 * SECOND && elapsed < 9 * SECOND + Duration::from_millis(10), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_on_passes_only_once_nothing_arrives() {
        let (mut client, mut server) = duplex(64);
        let (_stop, shutdown) = watch::channel(false);
        let mut reads = ReadWatch::new(&shutdown);
        let mut input = Vec::with_capacity(64);
        let begun = Instant::now();
        for n in 1..5 {
            tokio::time::advance(2 * SECOND).await;
            client.write_all(b"x").await.expect("room");
            let event = reads.read(&mut server, &mut input, Some(Instant::now() + 3 * SECOND)).await;
            assert!(matches!(event, ReadEvent::Read(Ok(1))), "{n}: {event:?}");
        }
        let event = reads.read(&mut server, &mut input, Some(Instant::now() + 3 * SECOND)).await;
        assert!(matches!(event, ReadEvent::DeadlinePassed), "{event:?}");
        assert_eq!(begun.elapsed().as_secs(), 11);
        let event = reads.read(&mut server, &mut input, Some(Instant::now() + SECOND)).await;
        assert!(matches!(event, ReadEvent::DeadlinePassed), "{event:?}");
        assert_eq!(begun.elapsed().as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_between_two_reads_is_noticed() {
        let (mut client, mut server) = duplex(64);
        let (stop, shutdown) = watch::channel(false);
        let mut reads = ReadWatch::new(&shutdown);
        let mut input = Vec::with_capacity(64);
        let deadline = Some(Instant::now() + SECOND);
        client.write_all(b"x").await.expect("room");
        assert!(matches!(reads.read(&mut server, &mut input, deadline).await, ReadEvent::Read(Ok(1))));
        assert!(matches!(reads.read(&mut server, &mut input, deadline).await, ReadEvent::DeadlinePassed));
        client.write_all(b"x").await.expect("room");
        stop.send_replace(true);
        let later = Some(Instant::now() + SECOND);
        assert!(matches!(reads.read(&mut server, &mut input, later).await, ReadEvent::Read(Ok(1))));
        assert!(matches!(reads.read(&mut server, &mut input, later).await, ReadEvent::Stopped));
        assert!(matches!(reads.read(&mut server, &mut input, later).await, ReadEvent::DeadlinePassed));
    }
}
