//! The commands of one read: parsed in order, with the memory of their keys prefetched, then run in order.

use std::io;

use smallvec::SmallVec;
use tokio::io::AsyncWrite;
use tollgate::internal::engine::DecisionMode;

use super::check::{Check, write_verdict};
use super::command::Command;
use super::frame::Args;
use super::session::RespSession;
use super::throttle::{ThrottleCall, write_outcome};
use super::{MAX_REPLY_BYTES, send};
use crate::gate::{CallerKey, ThrottleCounter, call_each};

/// Commands that are decided together.
const MAX_COMMANDS: usize = 64;

#[derive(Default)]
pub struct CommandBatch<'a> {
    commands: SmallVec<[BatchedCommand<'a>; 4]>,
    /// Whether the last command changes how further ones are parsed.
    is_closed: bool,
}

enum BatchedCommand<'a> {
    Throttle(BatchedThrottle<'a>),
    Check(Box<Check<'a>>),
    Other(Command<'a>),
    Invalid(String),
}

struct BatchedThrottle<'a> {
    call: ThrottleCall<'a>,
    key: CallerKey<'a>,
    counter: ThrottleCounter,
}

impl<'a> CommandBatch<'a> {
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.is_closed || self.commands.len() == MAX_COMMANDS
    }

    /// Adds a command; one without a name is skipped, as Redis does.
    pub fn add(&mut self, session: &RespSession<'_>, args: &Args<'a, '_>) {
        let Some(name) = args.get(0) else { return };
        let parsed = if name.eq_ignore_ascii_case(b"cl.throttle") {
            let call = ThrottleCall::parse(args).map_err(|error| error.to_string());
            call.map(|call| {
                let key = session.caller_key(call.key);
                let counter = session.server.gate.throttle_counter(key, &call.limit, call.quantity);
                BatchedCommand::Throttle(BatchedThrottle { call, key, counter })
            })
        } else if name.eq_ignore_ascii_case(b"tollgate.check") {
            let check = Check::parse(args).map_err(|error| error.to_string());
            check.map(|check| BatchedCommand::Check(Box::new(check)))
        } else {
            Command::parse(args).map(BatchedCommand::Other).map_err(|error| error.to_string())
        };
        self.is_closed = matches!(
            parsed,
            Ok(BatchedCommand::Other(
                Command::Select(_)
                    | Command::Auth(_)
                    | Command::Hello { .. }
                    | Command::Reset
                    | Command::Quit
            ))
        );
        self.commands.push(parsed.unwrap_or_else(BatchedCommand::Invalid));
    }

    /// Runs the commands in order and writes their replies, which are sent once there are many.
    pub async fn run<S>(self, session: &mut RespSession<'_>, stream: &mut S) -> io::Result<()>
    where
        S: AsyncWrite + Unpin,
    {
        let count = self.commands.len() as u64;
        let mut commands = self.commands.into_iter().peekable();
        while let Some(command) = commands.next() {
            match command {
                BatchedCommand::Throttle(throttle) => {
                    let mut throttles = vec![throttle];
                    while let Some(BatchedCommand::Throttle(next)) =
                        commands.next_if(|next| matches!(next, BatchedCommand::Throttle(_)))
                    {
                        throttles.push(next);
                    }
                    run_throttles(session, &throttles).await;
                }
                BatchedCommand::Check(check) => {
                    let mode = check.mode;
                    let is_like = |next: &BatchedCommand<'_>| matches!(next, BatchedCommand::Check(next) if next.mode == mode);
                    let mut checks = vec![*check];
                    while let Some(BatchedCommand::Check(next)) = commands.next_if(is_like) {
                        checks.push(*next);
                    }
                    run_checks(session, &checks).await;
                }
                BatchedCommand::Other(Command::Del(keys)) => run_del(session, &keys).await,
                BatchedCommand::Other(command) => session.reply(&command),
                BatchedCommand::Invalid(error) => session.replies.error(error),
            }
            if session.replies.bytes.len() > MAX_REPLY_BYTES {
                send(stream, session).await?;
            }
        }
        session.count(count);
        Ok(())
    }
}

/// Decides calls in order. With a central store calls on different keys wait for it at the same time.
async fn run_throttles(session: &mut RespSession<'_>, throttles: &[BatchedThrottle<'_>]) {
    if !session.is_authenticated() {
        return throttles.iter().for_each(|_| session.reject_unauthenticated());
    }
    let gate = &session.server.gate;
    let outcomes = if gate.counts_in_memory() {
        let mut outcomes = Vec::with_capacity(throttles.len());
        for BatchedThrottle { call, key, counter } in throttles {
            outcomes.push(gate.throttle(counter, *key, call.quantity, gate.now()).await);
        }
        outcomes
    } else {
        call_each(
            throttles,
            |throttle| throttle.key,
            |BatchedThrottle { call, key, counter }| gate.throttle(counter, *key, call.quantity, gate.now()),
        )
        .await
    };
    for (BatchedThrottle { call, .. }, outcome) in throttles.iter().zip(outcomes) {
        match outcome {
            Ok(outcome) => write_outcome(&mut session.replies, &call.limit, call.quantity, &outcome),
            Err(error) => session.replies.error(error),
        }
    }
}

/// Decides checks of the same mode together.
async fn run_checks(session: &mut RespSession<'_>, checks: &[Check<'_>]) {
    if !session.is_authenticated() {
        return checks.iter().for_each(|_| session.reject_unauthenticated());
    }
    let gate = &session.server.gate;
    let snapshot = gate.snapshot();
    let now = gate.now();
    let hits: Vec<_> = checks.iter().map(|check| snapshot.identify(check.hit.clone(), now)).collect();
    let verdicts = match checks.first().map(|check| check.mode) {
        Some(DecisionMode::Check) => gate.check_batch(&snapshot, &hits, now).await,
        Some(DecisionMode::Peek) => gate.peek_batch(&snapshot, &hits, now).await,
        None => Vec::new(),
    };
    for (check, verdict) in checks.iter().zip(&verdicts) {
        write_verdict(&mut session.replies, verdict, check.reply, || gate.ticket(verdict, now));
    }
}

async fn run_del(session: &mut RespSession<'_>, keys: &[&[u8]]) {
    if !session.is_authenticated() {
        return session.reject_unauthenticated();
    }
    let gate = &session.server.gate;
    let keys: Vec<_> = keys.iter().map(|name| session.caller_key(name)).collect();
    let results = call_each(&keys, |key| *key, |key| gate.reset_throttle(*key, gate.now())).await;
    let removed = results.into_iter().try_fold(0, |sum, was_used| was_used.map(|was| sum + i64::from(was)));
    match removed {
        Ok(removed) => session.replies.integer(removed),
        Err(error) => session.replies.error(format_args!("UNAVAILABLE {error}")),
    }
}
