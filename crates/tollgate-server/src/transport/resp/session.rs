//! One client's session, and the replies to commands other than decisions.

use std::fmt::Write;
use std::net::SocketAddr;

use super::RespServer;
use super::command::{AuthToken, ClientCommand, Command, TABLE, TableCommand, TableRow};
use super::frame::{Args, CommandBounds};
use super::reply::{Replies, RespVersion};
use super::throttle_queue::ThrottleQueue;
use crate::gate::CallerKey;
use crate::metrics::{RequestStatus, RespStatus, Transport};

pub struct RespSession<'s> {
    pub server: &'s RespServer,
    pub replies: Replies,
    /// The number of the set of keys that the client has selected.
    pub database: u8,
    /// Set when the connection is to be closed after the replies.
    pub is_closing: bool,
    is_authenticated: bool,
    queue: ThrottleQueue,
    name: Vec<u8>,
    id: u64,
    peer: SocketAddr,
}

const NO_AUTH: &str = "NOAUTH Authentication required.";

impl<'s> RespSession<'s> {
    pub fn new(server: &'s RespServer, peer: SocketAddr, id: u64) -> RespSession<'s> {
        RespSession {
            server,
            replies: Replies::default(),
            database: 0,
            is_closing: false,
            is_authenticated: server.tokens.is_none(),
            queue: ThrottleQueue::default(),
            name: Vec::new(),
            id,
            peer,
        }
    }

    pub fn caller_key<'k>(&self, name: &'k [u8]) -> CallerKey<'k> {
        CallerKey { database: self.database, name }
    }

    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// How long the next command may be.
    pub fn command_bounds(&self) -> CommandBounds {
        if self.is_authenticated { CommandBounds::AUTHENTICATED } else { CommandBounds::UNAUTHENTICATED }
    }

    pub fn reject_unauthenticated(&mut self) {
        self.replies.error(NO_AUTH);
    }

    /// Counts the replies to some commands.
    pub fn count(&mut self, commands: u64) {
        let errors = std::mem::take(&mut self.replies.errors);
        let limited = std::mem::take(&mut self.replies.limited);
        let answered = commands.saturating_sub(limited + errors);
        for (status, count) in
            [(RespStatus::Ok, answered), (RespStatus::Limited, limited), (RespStatus::Error, errors)]
        {
            if count > 0 {
                self.server.gate.requests.add(Transport::Resp, RequestStatus::Resp(status), count);
            }
        }
    }

    /// Adds the call of `CL.THROTTLE` that `input` begins with to those that are decided next, if it is like the last
    /// one; returns its length.
    #[inline]
    pub fn enqueue_similar(&mut self, input: &[u8]) -> Option<usize> {
        if !self.is_authenticated {
            return None;
        }
        self.run_queued_if_full();
        self.queue.add_similar(&self.server.gate, self.database, input)
    }

    /// Adds a call of `CL.THROTTLE` to those that are decided next; returns whether it is one that needs not wait.
    pub fn enqueue(&mut self, args: &Args<'_, '_>) -> bool {
        if !self.is_authenticated {
            return false;
        }
        self.run_queued_if_full();
        self.queue.add(&self.server.gate, self.database, args)
    }

    fn run_queued_if_full(&mut self) {
        if self.queue.is_full() {
            self.run_queued();
        }
    }

    /// Decides the calls that were added, in order, and writes their replies.
    pub fn run_queued(&mut self) {
        if !self.queue.is_empty() {
            let gate = &self.server.gate;
            let calls = self.queue.run(gate, &mut self.replies, gate.now());
            self.count(calls);
        }
    }

    /// Replies to a command that needs no counter.
    pub fn reply(&mut self, command: &Command<'_>) {
        let is_open =
            matches!(command, Command::Auth(_) | Command::Hello { .. } | Command::Quit | Command::Reset);
        if !is_open && !self.is_authenticated {
            return self.reject_unauthenticated();
        }
        match command {
            Command::Ping(None) => self.replies.simple("PONG"),
            Command::Ping(Some(text)) | Command::Echo(text) => self.replies.bulk(text),
            Command::Hello { version, auth, name } => self.hello(*version, auth.as_ref(), *name),
            Command::Auth(credentials) => self.auth(credentials),
            Command::Select(number) => {
                self.database = *number;
                self.replies.simple("OK");
            }
            Command::Client(command) => self.client(command),
            Command::Table(command) => self.table(command),
            Command::Info => {
                let info = self.info();
                self.replies.bulk(info.as_bytes());
            }
            Command::Del(_) => {}
            Command::Quit => {
                self.is_closing = true;
                self.replies.simple("OK");
            }
            Command::Reset => {
                self.replies.version = RespVersion::V2;
                self.database = 0;
                self.name.clear();
                self.is_authenticated = self.server.tokens.is_none();
                self.replies.simple("RESET");
            }
        }
    }

    fn auth(&mut self, credentials: &AuthToken<'_>) {
        if self.server.tokens.is_none() {
            self.replies.error(
                "ERR AUTH <password> called without any password configured: no token has the role check",
            );
        } else if self.authenticate(credentials) {
            self.replies.simple("OK");
        }
    }

    /// Whether the token is valid; writes the error if it is not. As in Redis, a client that is authenticated stays so.
    fn authenticate(&mut self, credentials: &AuthToken<'_>) -> bool {
        let is_valid = self.server.is_valid(credentials.token);
        if is_valid {
            self.is_authenticated = true;
        } else {
            self.server.log_refused(self.peer);
            self.replies.error("WRONGPASS invalid token: AUTH expects a token of the role check");
        }
        is_valid
    }

    fn hello(&mut self, version: Option<RespVersion>, auth: Option<&AuthToken<'_>>, name: Option<&[u8]>) {
        if let Some(credentials) = auth
            && self.server.tokens.is_some()
            && !self.authenticate(credentials)
        {
            return;
        }
        if !self.is_authenticated {
            return self.replies.error(
                "NOAUTH HELLO must be called with AUTH: the listener requires a token of the role check",
            );
        }
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        self.replies.version = version.unwrap_or(self.replies.version);
        let replies = &mut self.replies;
        replies.map(7);
        replies.bulk(b"server");
        replies.bulk(b"tollgate");
        replies.bulk(b"version");
        replies.bulk(env!("CARGO_PKG_VERSION").as_bytes());
        replies.bulk(b"proto");
        replies.integer(if replies.version == RespVersion::V3 { 3 } else { 2 });
        replies.bulk(b"id");
        replies.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        replies.bulk(b"mode");
        replies.bulk(b"standalone");
        replies.bulk(b"role");
        replies.bulk(b"master");
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(&mut self, command: &ClientCommand<'_>) {
        match command {
            ClientCommand::Id => self.replies.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            ClientCommand::GetName if self.name.is_empty() => self.replies.null(),
            ClientCommand::GetName => self.replies.bulk(&self.name),
            ClientCommand::SetName(name) => {
                self.name = name.to_vec();
                self.replies.simple("OK");
            }
            ClientCommand::Ignored => self.replies.simple("OK"),
        }
    }

    fn table(&mut self, command: &TableCommand) {
        match command {
            TableCommand::Count => self.replies.integer(TABLE.len() as i64),
            TableCommand::Docs => self.replies.map(0),
            TableCommand::All => {
                self.replies.array(TABLE.len());
                TABLE.iter().for_each(|row| self.row(row));
            }
            TableCommand::Named(rows) => {
                self.replies.array(rows.len());
                for row in rows {
                    match row.and_then(|n| TABLE.get(n)) {
                        Some(row) => self.row(row),
                        None => self.replies.null(),
                    }
                }
            }
        }
    }

    fn row(&mut self, row: &TableRow) {
        let replies = &mut self.replies;
        replies.array(6);
        replies.bulk(row.name.as_bytes());
        replies.integer(row.arity);
        replies.array(row.flags.len());
        row.flags.iter().for_each(|flag| replies.simple(flag));
        replies.integer(row.first_key);
        replies.integer(row.last_key);
        replies.integer(i64::from(row.first_key > 0));
    }

    /// The fields that clients look for when they connect.
    fn info(&self) -> String {
        let gate = &self.server.gate;
        let mut info = String::new();
        let version = env!("CARGO_PKG_VERSION");
        let usage = gate.engine.store().usage();
        write!(
            info,
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ntollgate_version:{version}\r\n\
             # Persistence\r\nloading:0\r\n\
             # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
             # Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\n\
             # Keyspace\r\ndb0:keys={},expires={},avg_ttl=0\r\n",
            usage.bytes, usage.cap_bytes, usage.keys, usage.keys
        )
        .expect("writing to a string cannot fail");
        info
    }
}

/// The version of Redis that clients see; some compare it.
const REDIS_VERSION: &str = "7.4.0";
