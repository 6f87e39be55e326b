//! What denied clients are told: the words of the rule, pages, and tickets.

use tollgate::internal::ticket::{KeyScope, Ticket, Tickets};
use tollgate_testkit::{Answer, Folder};
use tollgate_tower::{LayerError, RateLimitBuilder, RateLimitLayer};

use crate::app::{App, NOW, rules, still};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const HTML: (&str, &str) = ("accept", "text/html");

fn builder() -> RateLimitBuilder {
    still(RateLimitLayer::builder().limit("1/m"))
}

fn denied(app: &App, headers: &[(&str, &str)]) -> Answer {
    app.get("/", &[]);
    let denied = app.get("/", headers);
    assert_eq!(denied.status, 429, "{denied}");
    denied
}

/// A ticket, opened as a server with the same `receipt_key_file` does.
fn open(ticket: &str) -> Ticket {
    Tickets::new(SECRET.as_bytes(), KeyScope::Fleet).open(ticket).expect("a ticket of this secret")
}

fn check_ticket(ticket: &str, rule: &str) {
    let ticket = open(ticket);
    assert_eq!(ticket.at, NOW);
    let limit = ticket.denied_by.expect("a limit");
    assert_eq!((limit.rule.as_str(), limit.limit.as_str(), limit.used), (rule, "1/m", 1));
}

#[test]
fn a_denial_has_a_ticket_if_there_is_a_key() {
    let with_key = |builder: RateLimitBuilder| App::new(builder.build().expect("a limit"));
    let app = with_key(builder().ticket_key(SECRET));
    check_ticket(denied(&app, &[]).json()["instance"].as_str().expect("a ticket"), "default");
    let page = denied(&app, &[HTML]).text();
    let (_, ticket) = page.split_once("<code>").expect("a ticket");
    check_ticket(ticket.split('<').next().unwrap_or_default(), "default");

    let folder = Folder::new();
    folder.write("key", format!("{SECRET}\n"));
    let app = with_key(builder().ticket_key_file(folder.path("key")));
    check_ticket(denied(&app, &[]).json()["instance"].as_str().expect("a ticket"), "default");

    let app = with_key(builder());
    assert!(denied(&app, &[]).json().get("instance").is_none());
}

#[test]
fn a_key_that_cannot_be_used_is_rejected() {
    let error = |builder: RateLimitBuilder| match builder.build() {
        Err(LayerError::TicketKey(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(error(builder().ticket_key("short")), "the secret is shorter than 32 bytes");
    let missing = error(builder().ticket_key_file("/no/such/key"));
    assert!(missing.starts_with("/no/such/key: cannot be read: "), "{missing}");
}

#[test]
fn a_rule_has_its_own_words_and_a_longest_wait() {
    let text = "rules: [{id: all, limit: 1/m, deny: {message: slow down, body: '{\"e\":1}',
        content_type: application/json, retry_after_max: 7s}}]";
    let layer = still(RateLimitLayer::builder().rules(text)).ticket_key(SECRET).build().expect("valid rules");
    let app = App::new(layer);
    let own = denied(&app, &[]);
    assert_eq!((own.header("content-type"), own.text().as_str()), (Some("application/json"), "{\"e\":1}"));
    assert_eq!(own.header("retry-after"), Some("7"));
    assert_eq!(own.header("ratelimit"), Some("\"all\";r=0;t=7"));
    check_ticket(own.header("tollgate-ticket").expect("the body has no place for it"), "all");
    let page = denied(&app, &[HTML]);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.text().contains("<p>slow down</p>"), "{page}");

    let app = App::new(rules("rules: [{id: all, limit: 1/m, deny: {message: slow down}}]"));
    assert_eq!(denied(&app, &[]).json()["detail"], "slow down");
}

#[test]
fn a_denial_of_grpc_has_the_media_type_of_the_request() {
    for (sent, expected) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text+proto"),
        ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
    ] {
        let app = App::new(rules("rules: [{id: all, limit: 0/m}]"));
        let denied = app.get("/", &[("content-type", sent)]);
        assert_eq!((denied.status, denied.header("content-type")), (200, Some(expected)));
        assert_eq!((denied.header("grpc-status"), denied.text().as_str()), (Some("8"), ""));
    }
}
