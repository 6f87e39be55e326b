//! The status page of the admin listener: rules in force, and decisions by outcome. Plain HTML, no scripts.

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};

use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response;

/// Rules shown; the admin API lists all.
const MAX_RULES: usize = 200;

pub fn show(gate: &Gate) -> FullResponse {
    let policy = gate.engine.policy();
    let now = gate.now();
    let shown = policy.rules().iter().take(MAX_RULES);
    let rows: String = shown
        .map(|rule| {
            let tally = rule.counts();
            let limits: Vec<_> = rule.limits.all().map(|each| each.limit.to_string()).collect();
            let cells = [
                rule.id.to_string(),
                rule.match_text(),
                limits.join(", "),
                rule.mode.name().to_owned(),
                tally.allowed.to_string(),
                tally.denied.to_string(),
                tally.shadow_denied.to_string(),
            ];
            let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    let rules = policy.rules().len();
    let generation = policy.generation();
    let bans = gate.engine.ban_count(now);
    let usage = gate.engine.store().usage();
    let body = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tollgate</title></head><body>\n\
         <h1>Tollgate</h1>\n\
         <p>{rules} rules in force, generation {generation}. {bans} bans. {keys} keys in {bytes} of {cap} bytes.{store}</p>\n\
         <table border=\"1\"><caption>Rules, with decisions by outcome since the start</caption>\n\
         <tr><th>rule</th><th>match</th><th>limits</th><th>mode</th><th>allowed</th><th>denied</th>\
         <th>denied in shadow</th></tr>\n{rows}</table>\n\
         <p><a href=\"/v1/rules\">rules</a> · <a href=\"/v1/bans\">bans</a> · <a href=\"/metrics\">metrics</a></p>\n\
         </body></html>\n",
        store = store(gate),
        keys = usage.keys,
        bytes = usage.bytes,
        cap = usage.cap_bytes,
    );
    let mut answer = response::text(StatusCode::OK, "text/html; charset=utf-8", body);
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; base-uri 'none'");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

/// The central store, and whether it is reachable.
fn store(gate: &Gate) -> String {
    let Some(central) = gate.central.get() else { return String::new() };
    let servers = central.health();
    let down: Vec<_> =
        servers.iter().filter(|server| server.trouble.is_some()).map(|server| &*server.server).collect();
    let state = match down[..] {
        [] => "all servers answer".to_owned(),
        _ => format!("<strong>protection is off</strong>: {} does not answer", escape(&down.join(", "))),
    };
    format!(" Counters are on {}: {state}.", escape(&central.name))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
