//! Work on a blocking thread of which there may be one at a time.

use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinError, spawn_blocking};

/// Runs `work` on a blocking thread, and gives the guard back. The thread has the guard meanwhile: a client that hangs
/// up drops the future, but the work goes on.
pub async fn run_guarded<T: Send + 'static>(
    guard: OwnedMutexGuard<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, OwnedMutexGuard<()>), JoinError> {
    spawn_blocking(move || (work(), guard)).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use tokio::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_the_guard_to_the_work() {
        let lock = Arc::new(Mutex::new(()));
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (finish, may_finish) = mpsc::channel::<()>();
        let guard = Arc::clone(&lock).lock_owned().await;
        let caller = tokio::spawn(run_guarded(guard, move || {
            started.send(()).expect("the test waits");
            may_finish.recv().ok();
        }));
        has_started.await.expect("it runs");
        caller.abort();
        assert!(caller.await.is_err_and(|error| error.is_cancelled()));
        assert!(lock.try_lock().is_err(), "the work still runs");
        finish.send(()).expect("it waits");
        drop(lock.lock().await);
    }
}
