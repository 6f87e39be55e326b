//! One memcached: a connection that all requests share, and the breaker in front of it.
//!
//! What several callers ask at the same time goes out in one write. Answers come in the order of the
//! questions. A caller that no longer waits has its question dropped if it has not been sent, and never
//! sent again if it has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::{self, Command, Reply};
use crate::counters::StoreError;
use crate::counters::breaker::{Breaker, ServerHealth};
use crate::counters::place::Login;

/// Questions that wait to be sent.
const MAX_WAITING: usize = 4096;
/// Questions that are sent and not answered.
const MAX_IN_FLIGHT: usize = 4096;
/// Questions that go out in one write.
const MAX_BATCH: usize = 256;
/// A new connection answers within this, or is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A connection that is lost sooner is not made again at once.
const LASTING: Duration = Duration::from_secs(1);
/// Bytes that wait to be written.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub struct Server {
    address: Arc<str>,
    breaker: Arc<Breaker>,
    questions: mpsc::Sender<Question>,
}

/// Commands that are answered together.
#[derive(Debug)]
struct Question {
    commands: Vec<Command>,
    /// `None` if nobody waits for the answers.
    answer: Option<oneshot::Sender<Vec<Reply>>>,
}

impl Server {
    /// Connects as soon as a runtime runs it, and again whenever the connection is lost.
    pub fn connect(address: &str, login: Option<Login>) -> Server {
        let breaker = Arc::new(Breaker::new(address));
        let (questions, asked) = mpsc::channel(MAX_WAITING);
        let line = Line { address: address.into(), login, breaker: breaker.clone(), asked };
        tokio::spawn(line.run());
        Server { address: address.into(), breaker, questions }
    }

    /// Whether it is of any use to ask.
    pub fn admit(&self) -> Result<(), StoreError> {
        self.breaker.admit()
    }

    /// The answers to commands, in their order.
    pub async fn ask(&self, commands: Vec<Command>, deadline: Instant) -> Result<Vec<Reply>, StoreError> {
        self.admit()?;
        let (answer, answered) = oneshot::channel();
        let question = Question { commands, answer: Some(answer) };
        self.questions.try_send(question).map_err(|_| StoreError::Busy { server: self.name() })?;
        match timeout_at(deadline, answered).await {
            Ok(Ok(replies)) => {
                self.breaker.succeeded();
                Ok(replies)
            }
            Ok(Err(_)) => {
                Err(StoreError::Unreachable { server: self.name(), reason: "the connection is lost".into() })
            }
            Err(_) => {
                self.breaker.failed("it does not answer in time");
                Err(StoreError::Deadline { server: self.name() })
            }
        }
    }

    /// The answer to one command.
    pub async fn ask_one(&self, command: Command, deadline: Instant) -> Result<Reply, StoreError> {
        let mut replies = self.ask(vec![command], deadline).await?;
        replies.pop().ok_or_else(|| self.out_of_step())
    }

    /// Sends commands whose answers nobody needs, after all that was asked before. What cannot be sent
    /// is dropped.
    pub fn tell(&self, commands: Vec<Command>) {
        if self.breaker.admit().is_ok() {
            let _ = self.questions.try_send(Question { commands, answer: None });
        }
    }

    pub fn health(&self) -> ServerHealth {
        self.breaker.health()
    }

    pub fn name(&self) -> String {
        self.address.to_string()
    }

    pub fn refused(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Refused { server: self.name(), reason: reason.into() }
    }

    pub fn out_of_step(&self) -> StoreError {
        self.refused("it answers another question than it was asked")
    }
}

/// The task that owns the connection.
struct Line {
    address: Box<str>,
    login: Option<Login>,
    breaker: Arc<Breaker>,
    asked: mpsc::Receiver<Question>,
}

/// A question that was sent.
struct InFlight {
    first_opaque: u32,
    expected: usize,
    replies: Vec<Reply>,
    answer: Option<oneshot::Sender<Vec<Reply>>>,
}

impl Line {
    async fn run(mut self) {
        while !self.asked.is_closed() || !self.asked.is_empty() {
            match timeout(CONNECT_TIMEOUT, self.open()).await {
                Ok(Ok(stream)) => {
                    self.breaker.probe_succeeded();
                    let begun = Instant::now();
                    match self.serve(stream).await {
                        Ok(()) => return,
                        // Closed for being idle, perhaps: that is no outage if a new one can be had.
                        Err(_) if begun.elapsed() > LASTING && !self.breaker.is_open() => continue,
                        Err(reason) => self.breaker.trip(&reason),
                    }
                }
                Ok(Err(reason)) => self.fail(&reason),
                Err(_) => self.fail("it accepts connections and does not answer"),
            }
            // Those who wait now would wait in vain.
            while self.asked.try_recv().is_ok() {}
            self.breaker.probe_due().await;
        }
    }

    fn fail(&self, reason: &str) {
        self.breaker.trip(reason);
        self.breaker.probe_failed(reason);
    }

    /// A connection that has answered.
    async fn open(&self) -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(&*self.address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        if let Some(Login { user, password }) = &self.login {
            let secret = format!("{user} {password}");
            let question = format!("set login 0 0 {}\r\n{secret}\r\n", secret.len());
            let answer = exchange(&mut stream, question.as_bytes()).await?;
            if answer != "STORED" {
                return Err(format!("it refuses the user or the password: {answer}"));
            }
        }
        match exchange(&mut stream, b"mn\r\n").await?.as_str() {
            "MN" => Ok(stream),
            "CLIENT_ERROR unauthenticated" => Err("it asks for a user and a password".to_owned()),
            "ERROR" => Err("it does not know meta commands: memcached 1.6 or later is needed".to_owned()),
            other => Err(format!("it does not answer as memcached does: {other}")),
        }
    }

    /// Asks and answers until the connection fails; `Ok` once nobody can ask any more.
    async fn serve(&mut self, mut stream: TcpStream) -> Result<(), String> {
        let (mut reader, mut writer) = stream.split();
        let mut in_flight: VecDeque<InFlight> = VecDeque::new();
        let (mut input, mut output) = (Vec::with_capacity(READ_BYTES), Vec::new());
        let (mut questions, mut opaque) = (Vec::new(), 0);
        loop {
            let room = in_flight.len() < MAX_IN_FLIGHT && output.len() < MAX_OUTPUT_BYTES;
            tokio::select! {
                biased; // nothing is sent on a connection that is known to be closed
                read = reader.read_buf(&mut input) => {
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Err("it closed the connection".to_owned());
                    }
                    take_answers(&mut input, &mut in_flight)?;
                }
                wrote = writer.write(&output), if !output.is_empty() => {
                    output.drain(..wrote.map_err(|error| error.to_string())?);
                }
                count = self.asked.recv_many(&mut questions, MAX_BATCH), if room => {
                    if count == 0 {
                        return Ok(());
                    }
                    questions.drain(..).for_each(|each| send(each, &mut output, &mut opaque, &mut in_flight));
                }
                // Too many went unanswered: a new connection has to prove that somebody is there.
                () = self.breaker.probe_due() => return Err("it does not answer".to_owned()),
            }
        }
    }
}

fn send(question: Question, output: &mut Vec<u8>, opaque: &mut u32, in_flight: &mut VecDeque<InFlight>) {
    let Question { commands, answer } = question;
    if answer.as_ref().is_some_and(oneshot::Sender::is_closed) {
        return;
    }
    let (first_opaque, expected) = (*opaque, commands.len());
    for command in commands {
        command.write(output, *opaque);
        *opaque = opaque.wrapping_add(1);
    }
    in_flight.push_back(InFlight { first_opaque, expected, replies: Vec::with_capacity(expected), answer });
}

fn take_answers(input: &mut Vec<u8>, in_flight: &mut VecDeque<InFlight>) -> Result<(), String> {
    let mut taken = 0;
    while let Some(read) = wire::read(&input[taken..]).map_err(|garbage| garbage.to_string())? {
        taken += read.len;
        let Some(first) = in_flight.front_mut() else {
            return Err("it answers without being asked".to_owned());
        };
        let expected = first.first_opaque.wrapping_add(first.replies.len() as u32);
        if read.opaque.is_some_and(|opaque| opaque != expected) {
            return Err("it answers out of order".to_owned());
        }
        first.replies.push(read.reply);
        if first.replies.len() == first.expected
            && let Some(InFlight { answer: Some(answer), replies, .. }) = in_flight.pop_front()
        {
            let _ = answer.send(replies); // whoever asked may have gone
        }
    }
    input.drain(..taken);
    Ok(())
}

/// One line out, one line back: for a connection that nobody else uses yet.
async fn exchange(stream: &mut TcpStream, question: &[u8]) -> Result<String, String> {
    const MAX_ANSWER_BYTES: usize = 512;
    stream.write_all(question).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n") {
        let read = stream.read_buf(&mut answer).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("it closed the connection".to_owned());
        }
        if answer.len() > MAX_ANSWER_BYTES {
            break;
        }
    }
    answer.truncate(MAX_ANSWER_BYTES);
    Ok(answer.trim_ascii_end().escape_ascii().to_string())
}
