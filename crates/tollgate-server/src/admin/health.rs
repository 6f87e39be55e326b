//! `/healthz` and `/readyz`, open to all callers. Names of servers, and messages that may contain them, are shown only
//! to callers that may read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::internal::Enforce;
use tollgate_stores::rules::Version;

use crate::admin::Admin;
use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response;
use crate::rules_follower::{RulesDbStatus, RulesFollower, RulesSource};
use crate::state::{self, Saving};
use crate::transport::proxy::{Proxy, UpstreamReport};
use tollgate::internal::store::memory::MemoryFull;
use tollgate::internal::ticket::KeyScope;

/// How much detail a response has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    None,
    Servers,
}

impl Detail {
    pub fn of(call: &AdminRequest) -> Detail {
        if call.caller.is_empty() { Detail::None } else { Detail::Servers }
    }
}

/// Liveness, and whether all limits are enforced as configured.
pub fn health(gate: &Gate, proxy: Option<&Proxy>, detail: Detail) -> FullResponse {
    response::json(StatusCode::OK, &health_json(gate, proxy, detail))
}

/// `ok` or `impaired`.
pub fn status(gate: &Gate, proxy: Option<&Proxy>) -> Value {
    health_json(gate, proxy, Detail::None)["status"].take()
}

pub fn health_json(gate: &Gate, proxy: Option<&Proxy>, detail: Detail) -> Value {
    let mut health = central_health(gate, detail);
    let enforce = gate.engine.enforce();
    health["enforce"] = enforce.name().into();
    if enforce != Enforce::On {
        health["protection"] = "off".into();
        health["protection_cause"] = "enforce".into();
    }
    if detail == Detail::Servers {
        health["node"] = format!("{:08x}", gate.engine.node()).into();
        let is_shared = gate.tickets.scope() == KeyScope::Fleet;
        if let Some(http) = gate.http.get() {
            health["http"] = json!(http);
        }
        health["ticket_key"] = json!({ "id": gate.tickets.key_id(), "shared": is_shared });
    }
    health["rules"] = gate.engine.policy().rules().len().into();
    if let Some(follower) = gate.rules_follower.get() {
        let status = follower.status();
        if status.is_impaired() {
            health["status"] = "impaired".into();
        }
        if status.source == RulesSource::None && gate.is_accepting.load(Ordering::Acquire) {
            let has_rules = !gate.engine.policy().rules().is_empty();
            health["protection"] = if has_rules { "partial" } else { "off" }.into();
            health["protection_cause"] = "no_rules_loaded".into();
        }
        health["rules_db"] = rules_db(follower, &status, gate.now(), detail);
    }
    if let Some(full) = gate.engine.store().full_now(gate.now()) {
        health["status"] = "impaired".into();
        health["memory"] = match full {
            MemoryFull::Aggregate => "full: new keys share counters",
            MemoryFull::Open => "full: new keys pass without a limit",
            MemoryFull::Closed => "full: new keys are denied",
            _ => "full",
        }
        .into();
    }
    if let Some(saving) = gate.saving.get() {
        let status = saving.status();
        if status.is_impaired(gate.now()) {
            health["status"] = "impaired".into();
        }
        health["state"] = saved_state(saving, &status, gate.now());
    }
    let troubles =
        gate.tls.get().into_iter().flatten().filter_map(|tls| Some((tls.listener, tls.trouble()?)));
    // The reason names files.
    let shown = |why: String| if detail == Detail::Servers { why } else { UNUSABLE_CERTIFICATE.to_owned() };
    let troubles: serde_json::Map<_, _> =
        troubles.map(|(listener, why)| (listener.to_owned(), shown(why).into())).collect();
    if !troubles.is_empty() {
        health["status"] = "impaired".into();
        health["tls"] = troubles.into();
    }
    if let Some(why) = gate.reloads.rejection() {
        health["status"] = "impaired".into();
        let why = if detail == Detail::Servers { why } else { REJECTED_CHANGE.to_owned() };
        health["reload"] = json!({ "trouble": why });
    }
    if let Some(proxy) = proxy {
        add_upstreams(&mut health, &proxy.upstreams(), detail);
    }
    health
}

/// Impaired if no upstream can be reached.
fn add_upstreams(health: &mut Value, upstreams: &[UpstreamReport], detail: Detail) {
    if !upstreams.iter().any(UpstreamReport::is_up) {
        health["status"] = "impaired".into();
    }
    let shown = upstreams.iter().map(|upstream| match detail {
        Detail::None => json!({ "up": upstream.is_up() }),
        Detail::Servers => {
            json!({ "server": upstream.address, "up": upstream.is_up(), "trouble": upstream.down_reason })
        }
    });
    health["upstreams"] = shown.collect();
}

const REJECTED_CHANGE: &str = "the changed configuration was rejected, the one before it is in force";
const UNUSABLE_CERTIFICATE: &str = "the new certificate cannot be used, the one before it is in force";

/// What a crash would lose now.
fn saved_state(saving: &Saving, status: &state::SaveStatus, now: Time) -> Value {
    let millis = |duration: Duration| duration.as_millis() as u64;
    json!({
        "every_ms": millis(saving.every),
        "interval_ms": millis(status.interval),
        "age_ms": status.saved_at.map(|at| millis(now.since(at))),
        "file_bytes": saving.file_bytes.load(Ordering::Relaxed),
        "trouble": status.trouble,
    })
}

fn rules_db(follower: &RulesFollower, status: &RulesDbStatus, now: Time, detail: Detail) -> Value {
    let version = |version: Version| version.to_string();
    if detail == Detail::None {
        return json!({ "source": status.source.name(), "version": status.version.map(version) });
    }
    let left_out = status.left_out.iter().map(|(item, why)| json!({ "what": item.kind.name(), "why": why }));
    let copy = status.has_copy.then(|| {
        json!({
            "version": status.copy.map(|copy| version(copy.version)),
            "age_seconds": status.copy.map(|copy| copy.age(now).as_secs()),
            "trouble": status.copy_error,
        })
    });
    json!({
        "name": follower.name,
        "source": status.source.name(),
        "version": status.version.map(version),
        "trouble": status.read_error,
        "writable": follower.db().is_ok() && status.write_error.is_none(),
        "write_trouble": status.write_error,
        "pending_edits": follower.pending_edits(),
        "copy": copy,
        "lag": status.lag,
        "left_out": left_out.collect::<Value>(),
    })
}

fn central_health(gate: &Gate, detail: Detail) -> Value {
    let Some(central) = gate.central.get() else { return json!({ "status": "ok" }) };
    let servers: Vec<_> = central
        .health()
        .iter()
        .map(|server| json!({ "server": server.server, "up": server.trouble.is_none(), "trouble": server.trouble }))
        .collect();
    let (status, protection) = if central.is_impaired() { ("impaired", "off") } else { ("ok", "on") };
    let mut health = json!({ "status": status, "protection": protection });
    if protection != "on" {
        health["protection_cause"] = "store".into();
    }
    if detail == Detail::Servers {
        health["store"] = servers.into();
    }
    health
}

/// Ready once all listeners accept: then the first rules are in force, or the node starts without those of the
/// database.
pub fn readiness(admin: &Admin, detail: Detail) -> FullResponse {
    if *admin.shutdown.borrow() {
        return response::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" }));
    }
    let follower = admin.gate.rules_follower.get();
    if !admin.gate.is_accepting.load(Ordering::Acquire) {
        let body = match follower {
            Some(follower) => {
                let reason = Some(follower.waiting_reason()).filter(|_| detail == Detail::Servers);
                json!({ "status": "waiting for the rules database", "reason": reason })
            }
            None => json!({ "status": "starting" }),
        };
        return response::json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let stuck = admin.gate.worker_heartbeats.stalled(admin.gate.now());
    if let Some(listener) = stuck.first() {
        let status = format!("the listener {listener} does not answer");
        let body = json!({ "status": status, "stuck_workers": stuck.len() });
        return response::json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let generation = admin.gate.engine.policy().generation();
    let mut body = json!({ "status": "ready", "rules_generation": generation });
    if let Some(source) =
        follower.map(|follower| follower.source()).filter(|from| *from != RulesSource::Database)
    {
        body["rules_from"] = source.name().into();
    }
    response::json(StatusCode::OK, &body)
}
