//! The reply of a call that several requests share.
//!
//! To wake a task of another thread takes a system call. So the reader of the connection wakes one request of each
//! thread; that one wakes the others of its thread when it is polled, or when it is dropped instead.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

use tollgate::internal::lock;

use super::resp::RedisReply;
use super::script;

/// The connection was lost before the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReplyLost;

#[derive(Default)]
struct ReplyState {
    is_complete: bool,
    requests: Vec<WaitingRequest>,
}

#[derive(Default)]
struct WaitingRequest {
    waker: Option<Waker>,
    /// The thread that polled it last.
    thread: Option<ThreadId>,
    /// `None` until the reply arrives, and if it is lost.
    reply: Option<RedisReply>,
}

/// The connection's side. If it is dropped without a reply, the reply is lost.
#[derive(Default)]
pub(super) struct SharedReply(Arc<Mutex<ReplyState>>);

/// The reply of one request.
pub(super) struct PendingShare {
    state: Arc<Mutex<ReplyState>>,
    request: usize,
}

impl SharedReply {
    /// Adds a request.
    pub(super) fn join(&self) -> PendingShare {
        let mut state = lock(&self.0);
        state.requests.push(WaitingRequest::default());
        PendingShare { state: Arc::clone(&self.0), request: state.requests.len() - 1 }
    }

    /// Gives each request its part; `counters` are those of each request.
    pub(super) fn complete(self, reply: RedisReply, counters: &[usize]) {
        let parts = script::split_reply(reply, counters);
        let mut state = lock(&self.0);
        for (request, part) in state.requests.iter_mut().zip(parts) {
            request.reply = Some(part);
        }
    }
}

impl Drop for SharedReply {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.is_complete = true;
        let wakers = state.first_of_each_thread();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl ReplyState {
    fn first_of_each_thread(&mut self) -> Vec<Waker> {
        let mut threads = Vec::with_capacity(1);
        let mut wakers = Vec::with_capacity(1);
        for request in &mut self.requests {
            if !threads.contains(&request.thread)
                && let Some(waker) = request.waker.take()
            {
                threads.push(request.thread);
                wakers.push(waker);
            }
        }
        wakers
    }

    fn wakers_of(&mut self, thread: Option<ThreadId>) -> Vec<Waker> {
        let same_thread = self.requests.iter_mut().filter(|request| request.thread == thread);
        same_thread.filter_map(|request| request.waker.take()).collect()
    }
}

impl PendingShare {
    /// Wakes the other requests of its thread, once the reply is complete.
    fn pass_on(&self) {
        let mut state = lock(&self.state);
        state.requests[self.request].waker = None;
        if state.is_complete {
            let thread = state.requests[self.request].thread;
            let wakers = state.wakers_of(thread);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Future for PendingShare {
    type Output = Result<RedisReply, ReplyLost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        let is_complete = state.is_complete;
        let request = &mut state.requests[self.request];
        if is_complete {
            return Poll::Ready(request.reply.take().ok_or(ReplyLost));
        }
        match &mut request.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => request.waker = Some(context.waker().clone()),
        }
        request.thread = Some(thread::current().id());
        Poll::Pending
    }
}

impl Drop for PendingShare {
    fn drop(&mut self) {
        self.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiting {
        share: Option<PendingShare>,
        woken: Arc<Count>,
    }

    impl Waiting {
        fn join(reply: &SharedReply) -> Waiting {
            Waiting { share: Some(reply.join()), woken: Arc::default() }
        }

        fn poll(&mut self) -> Poll<Result<RedisReply, ReplyLost>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            let share = self.share.as_mut().expect("not dropped yet");
            let polled = Pin::new(share).poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                self.share = None; // as a task does that goes on
            }
            polled
        }
    }

    fn woken(waiting: &[Waiting]) -> Vec<usize> {
        waiting.iter().map(|one| one.woken.0.load(Ordering::Relaxed)).collect()
    }

    fn three(reply: &SharedReply) -> Vec<Waiting> {
        let mut waiting: Vec<_> = (0..3).map(|_| Waiting::join(reply)).collect();
        assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
        waiting
    }

    fn error() -> RedisReply {
        RedisReply::Error("ERR no".to_owned())
    }

    #[test]
    fn the_first_request_of_a_thread_wakes_the_others() {
        let reply = SharedReply::default();
        let mut waiting = three(&reply);
        let mut elsewhere = Waiting::join(&reply);
        thread::scope(|scope| scope.spawn(|| assert!(elsewhere.poll().is_pending())).join())
            .expect("no panic");
        reply.complete(error(), &[1; 4]);
        assert_eq!((woken(&waiting), woken(&[elsewhere])), (vec![1, 0, 0], vec![1]));
        assert_eq!(waiting[0].poll(), Poll::Ready(Ok(error())));
        assert_eq!(woken(&waiting), [1, 1, 1]);
        assert_eq!(waiting[2].poll(), Poll::Ready(Ok(error())));
    }

    #[test]
    fn a_request_that_is_dropped_wakes_the_others_instead() {
        let reply = SharedReply::default();
        let mut waiting = three(&reply);
        reply.complete(error(), &[1; 3]);
        waiting[0].share = None;
        assert_eq!(woken(&waiting), [1, 1, 1]);
    }

    #[test]
    fn a_request_that_has_given_up_is_not_waited_for() {
        let reply = SharedReply::default();
        let mut waiting = three(&reply);
        waiting[0].share = None;
        reply.complete(error(), &[1; 3]);
        assert_eq!(woken(&waiting), [0, 1, 0]);
    }

    #[test]
    fn a_lost_reply_ends_every_request() {
        let reply = SharedReply::default();
        let mut waiting = three(&reply);
        drop(reply);
        assert!(waiting.iter_mut().all(|one| one.poll() == Poll::Ready(Err(ReplyLost))));
    }
}
