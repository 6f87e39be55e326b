//! Requests put aside (`on_exceed: queue`): kept on disk until the API has taken them.
//!
//! At least once: what was under way when the process ended is sent again, with the same idempotency key.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tollgate::identity::Attribute;
use tollgate::{Hit, Time};

mod sqlite;

pub use sqlite::{Queue, QueueError};

/// One request, as it will be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub id: String,
    pub method: String,
    /// Path and query.
    pub target: String,
    pub host: String,
    /// The chosen headers.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub sender: Sender,
    pub state: State,
    pub queued_at: Time,
    pub expires_at: Time,
    /// Not sent before.
    pub next_at: Time,
    pub tries: u32,
    /// The status that the API answered with last.
    pub status: Option<u16>,
    pub error: Option<String>,
}

/// Who sent it, as rules tell: resolved when it came in, for tokens expire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sender {
    pub ip: IpAddr,
    /// Attributes as rules name them, with their values.
    pub identity: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Queued = 0,
    /// On its way to the API.
    Sending = 1,
    /// The API has answered.
    Done = 2,
    /// Given up: tried too often, or too old.
    Dead = 3,
}

impl State {
    pub const ALL: [State; 4] = [State::Queued, State::Sending, State::Done, State::Dead];

    pub const fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Sending => "sending",
            State::Done => "done",
            State::Dead => "dead",
        }
    }

    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl Item {
    /// The hit that it makes when it is sent.
    pub fn hit(&self) -> Hit<'_> {
        let hit = Hit::on(&self.method, &self.host, &self.target).ip(self.sender.ip);
        self.sender.identity.iter().fold(hit, |hit, (name, value)| match Attribute::parse(name) {
            Ok(Attribute::User) => hit.user(value.as_str()),
            Ok(Attribute::Email) => hit.email(value.as_str()),
            Ok(Attribute::Mac) => hit.mac(value.as_str()),
            Ok(Attribute::ApiKey) => hit.api_key(value.as_str()),
            Ok(Attribute::Field(source, name)) => hit.field(source, name.to_string(), value.as_str()),
            Ok(Attribute::Ip | Attribute::Path | Attribute::Method | Attribute::Host) | Err(_) => hit,
        })
    }
}
