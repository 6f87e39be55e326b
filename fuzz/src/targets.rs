//! Every target: what it reads, the words of its format, and inputs to begin with.

mod client;
mod connection;
mod documents;
mod envoy;
mod http;
mod identity;
mod resp;
mod snapshot;
mod stores;
mod tokens;

/// A parser under test.
pub struct Target {
    pub name: &'static str,
    /// Panics where something that always holds does not.
    pub run: fn(&[u8]),
    /// Words that mutations put into inputs.
    pub words: &'static [&'static str],
    /// Inputs to begin with, beside those in the corpus.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutations make no longer inputs.
    pub max_bytes: usize,
}

const MAX_BYTES: usize = 4 << 10;

pub const TARGETS: &[Target] = &[
    http::HEADS,
    http::PLAIN_CALLS,
    http::CONNECTION,
    http::HEADERS,
    http::JSON_FIELDS,
    http::FORM_FIELDS,
    http::CHECK_BODY,
    client::LIMIT_HEADERS,
    identity::TARGET,
    identity::FIELDS,
    identity::CLIENT_ADDRESS,
    identity::KEY,
    identity::VALUES,
    documents::YAML,
    documents::CONFIG,
    documents::RULES_IMPORT,
    documents::BANS_IMPORT,
    tokens::JWT,
    tokens::KEY_SET,
    tokens::RECEIPT,
    resp::RESP,
    envoy::CONFIG,
    envoy::REQUEST,
    envoy::AUTHORIZATION,
    connection::PROXY_HEADER,
    stores::REDIS,
    stores::MEMCACHED,
    stores::VALUES,
    snapshot::SNAPSHOT,
];

/// The target of a name.
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Text seeds as bytes.
fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The input as text, if it is UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// The first line, and the rest.
fn first_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}
