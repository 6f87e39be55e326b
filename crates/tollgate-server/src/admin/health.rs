//! `/healthz` and `/readyz`, which anybody may ask.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::Enforce;

use crate::admin::Admin;
use crate::answer;
use crate::connection::Answer;
use crate::gate::Gate;

/// Alive; and whether limits hold as they should.
pub fn health(gate: &Gate) -> Answer {
    let mut health = central_health(gate);
    let enforce = gate.engine.enforce();
    health["enforce"] = enforce.name().into();
    if enforce != Enforce::On {
        health["protection"] = "off".into();
    }
    if let Some(rulebook) = gate.rulebook.get() {
        let standing = rulebook.standing();
        if standing.trouble.is_some() || !standing.left_out.is_empty() {
            health["status"] = "impaired".into();
        }
        let left_out =
            standing.left_out.iter().map(|(item, why)| json!({ "what": item.kind.name(), "why": why }));
        health["rules_db"] = json!({
            "name": rulebook.name,
            "version": standing.version.map(|version| version.to_string()),
            "trouble": standing.trouble,
            "lag": standing.lag,
            "left_out": left_out.collect::<Value>(),
        });
    }
    answer::json(StatusCode::OK, &health)
}

fn central_health(gate: &Gate) -> Value {
    let Some(central) = gate.central.get() else { return json!({ "status": "ok" }) };
    let servers: Vec<_> = central
        .health()
        .iter()
        .map(|server| json!({ "server": server.server, "up": server.trouble.is_none(), "trouble": server.trouble }))
        .collect();
    let (status, protection) = if central.is_impaired() { ("impaired", "off") } else { ("ok", "on") };
    json!({ "status": status, "protection": protection, "store": servers })
}

/// By the time this answers, every listener is bound and the first rules are in force.
pub fn readiness(admin: &Admin) -> Answer {
    if *admin.shutdown.borrow() {
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" }));
    }
    if admin.gate.rulebook.get().is_some_and(|rulebook| !rulebook.is_ready()) {
        let body = json!({ "status": "waiting for the rules database" });
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let generation = admin.gate.engine.policy().generation();
    answer::json(StatusCode::OK, &json!({ "status": "ready", "rules_generation": generation }))
}
