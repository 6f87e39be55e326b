//! Access to the server's internals for fuzz targets and linearity tests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use tollgate::Time;
use tollgate::internal::engine::LogKeys;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
use tollgate::internal::policy::Settings;
use tollgate::internal::{EngineCore, PolicySnapshot};

pub use crate::admin::testing as admin;
use crate::config::Config;
use crate::config_history::ConfigHistory;
pub use crate::connection::testing as connection;
pub use crate::envoy::testing as envoy;
use crate::envoy::{EnvoyLimits, EnvoySettings};
use crate::gate::{Gate, LiveSettings};
use crate::insight::Insight;
pub use crate::insight::testing::CountedNode;
pub use crate::insight::{CAPACITY as TOP_CAPACITY, SpaceSaving, TopOutcome, TopWindow};
use crate::jwt::KeySet;
pub use crate::queue::enqueue_and_answer;
use crate::receipt::{Receipts, Settlement};
pub use crate::transport::grpc::testing as grpc;
pub use crate::transport::http::testing as http;
pub use crate::transport::proxy::testing as proxy;
pub use crate::transport::resp::testing as resp;

const NOW: Time = Time::from_secs(1_800_000_000);
const SECRET: [u8; 32] = [7; 32];

/// A gate with the rules of a configuration.
pub(crate) fn gate(config: &str) -> Arc<Gate> {
    let mut parsed = Config::parse(config, Path::new("")).expect("the configuration is valid");
    let policy = parsed.take_policy().expect("the rules are valid");
    let history = ConfigHistory::new(config.to_owned());
    let live = LiveSettings {
        headers: parsed.headers,
        jwt: None,
        history,
        allow: Vec::new(),
        trusted: TrustedProxies::default(),
        envoy: EnvoyLimits::load(EnvoySettings::default(), &Settings::default()).expect("nothing is read"),
        trusted_header: ForwardingHeader::default(),
        decision_log: None,
        log: parsed.log,
        compat_names: Vec::new(),
    };
    Arc::new(Gate::new(EngineCore::new(policy), live))
}

/// The same with live data, as a node that serves its admin API has them.
pub(crate) fn counted_gate(config: &str) -> Arc<Gate> {
    let gate = gate(config);
    let counted = gate.insight.set(Insight::new(LogKeys::Redacted, gate.now()));
    assert!(counted.is_ok(), "it is set once");
    gate
}

/// The peer of a stream in memory.
pub(crate) const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Reads a configuration; returns its problems.
pub fn config(text: &str) -> Result<(), String> {
    Config::parse(text, Path::new("")).map(drop).map_err(|problems| problems.to_string())
}

fn signed(message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SECRET), message).as_ref().to_vec()
}

/// The claim `sub` of a token, if it verifies.
pub fn token_subject(token: &str) -> Option<String> {
    static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
        let key = URL_SAFE_NO_PAD.encode(SECRET);
        KeySet::from_json(&format!(r#"{{"keys":[{{"kty":"oct","k":"{key}"}}]}}"#)).expect("a valid key")
    });
    let claims = KEYS.verify(token, NOW.secs()).ok()?;
    claims.get("sub").map(std::borrow::Cow::into_owned)
}

/// A token with any contents and a valid signature.
pub fn signed_token(header: &[u8], claims: &[u8]) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(signed(message.as_bytes()));
    format!("{message}.{signature}")
}

/// Whether a text is a valid key set.
pub fn is_key_set(text: &str) -> bool {
    KeySet::from_json(text).is_ok()
}

/// The number of charges that a receipt settles, if it is valid.
pub fn settle(receipt: &str) -> Option<usize> {
    static POLICY: LazyLock<PolicySnapshot> =
        LazyLock::new(|| PolicySnapshot::from_yaml("rules: [{ id: a, limit: 5/m }]").expect("valid rules"));
    let receipts = Receipts::with_key(&SECRET).of_process(0);
    receipts.shared_id(receipt);
    let settlement = Settlement { cost: Some(0), status: None };
    receipts.settle(receipt, settlement, &POLICY, NOW).ok().map(|all| all.len())
}

/// A receipt with any contents and a valid signature.
pub fn signed_receipt(contents: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([contents, &signed(contents)].concat())
}
