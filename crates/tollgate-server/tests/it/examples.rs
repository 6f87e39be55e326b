//! The examples with several nodes: each is one command, and proves itself.

use std::path::Path;
use std::process::Command;

use tollgate_testkit::{find, not_run, run};

fn check(balancer: &str, by: &str, failing: &str) {
    for command in [balancer, "redis-server", "curl"] {
        if find(command).is_none() {
            return not_run(&format!("examples/several-nodes with {balancer}"), &format!("no {command}"));
        }
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/several-nodes/run");
    let mut command = Command::new(example);
    command.args(["--check", balancer, by, failing]).env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate"));
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("the limit holds over 3 nodes"), "{}", ran.stdout);
    let end = if failing == "open" { "requests reach the API" } else { "answered with 503" };
    assert!(ran.stdout.contains(end), "{}", ran.stdout);
}

#[test]
fn haproxy_sticky_by_user_failing_open() {
    check("haproxy", "user", "open");
}

#[test]
fn haproxy_sticky_by_address_failing_closed() {
    check("haproxy", "ip", "closed");
}

#[test]
fn haproxy_round_robin_over_redis_failing_open() {
    check("haproxy", "redis", "open");
}

#[test]
fn nginx_round_robin_over_redis_failing_closed() {
    check("nginx", "redis", "closed");
}

#[test]
fn nginx_sticky_by_user_failing_open() {
    check("nginx", "user", "open");
}

#[test]
fn nginx_sticky_by_address_failing_closed() {
    check("nginx", "ip", "closed");
}
