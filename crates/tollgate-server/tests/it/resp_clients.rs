//! The Redis protocol with the clients that people use, and the replies of `CL.THROTTLE` beside those of redis-cell.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Folder, Server, find, not_run};

use crate::callers::build_go_module;

const TOKEN: &str = "a-secret-of-the-callers";
const RULES: &str =
    "rules_db: none\nrules: [{ id: login, match: POST /login, key: user, limit: 1/h, burst: 1 }]\n";

/// A folder of target/servers; `None`, with a message, if it is not installed.
fn library(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers").join(name);
    let found = std::env::var_os("TOLLGATE_NO_SERVERS").is_none() && path.is_dir();
    if !found {
        not_run(&format!("examples/redis-clients with {name}"), "scripts/servers installs it");
    }
    found.then_some(path)
}

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/redis-clients").join(file)
}

fn folder_with_token() -> Arc<Folder> {
    let folder = Folder::new();
    folder.write("tokens", format!("check {TOKEN} app\n"));
    Command::new("chmod").arg("600").arg(folder.path("tokens")).status().expect("chmod runs");
    folder.configure(&format!("tokens_file: tokens\n{RULES}"));
    folder
}

/// Runs an example with both versions of the protocol, without and with a token, against a new node each time.
fn check_example(command: impl Fn() -> Command) {
    for version in ["2", "3"] {
        check_steps(&Server::start(RULES), command().arg("PORT").arg(version));
        check_steps(&Server::start_in(&folder_with_token()), command().arg("PORT").args([version, TOKEN]));
    }
}

/// Runs a program, with the node's port for the argument `PORT`, and compares what it prints for each step.
fn check_steps(server: &Server, command: &Command) {
    let port = server.resp.port().to_string();
    let mut run = Command::new(command.get_program());
    run.args(command.get_args().map(|arg| if arg == "PORT" { port.as_ref() } else { arg }));
    run.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = run.output().expect("the client runs");
    let printed = String::from_utf8_lossy(&ran.stdout);
    let context = format!("{run:?}\n{printed}{}", String::from_utf8_lossy(&ran.stderr));
    let steps: Vec<Value> = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let throttled = |limited: bool, remaining: u64, retry_after: i64| json!({ "limited": limited, "remaining": remaining, "retry_after": retry_after });
    let decided =
        |limited: bool| json!({ "limited": limited, "rule": "login", "remaining": 0, "retry": limited });
    let expected = [
        ("ping", json!(true)),
        ("throttle", json!([throttled(false, 1, -1), throttled(false, 0, -1), throttled(true, 0, 1800)])),
        ("check", json!([decided(false), decided(true)])),
        ("pipeline", json!([[0, 10, 8], [0, 10, 7], [0, 10, 7]])),
        ("error", json!("max_burst is not an integer: many")),
        ("delete", json!(2)),
        ("throttle", json!([throttled(false, 1, -1)])),
        ("reset", json!("RESET")),
    ];
    assert_eq!(steps.len(), expected.len(), "{context}");
    for (step, (name, mut value)) in steps.into_iter().zip(expected) {
        assert_eq!(step["step"], name, "{context}");
        let mut found = step["value"].clone();
        if name == "throttle" {
            forgive_a_second(&mut found);
            forgive_a_second(&mut value);
        }
        assert_eq!(found, value, "{name}: {context}");
    }
}

/// The seconds until a retry may have begun to pass.
fn forgive_a_second(throttled: &mut Value) {
    for each in throttled.as_array_mut().into_iter().flatten() {
        if each["retry_after"].as_i64().is_some_and(|seconds| (1700..=1800).contains(&seconds)) {
            each["retry_after"] = json!(1800);
        }
    }
}

fn check_python(package: &str) {
    let Some(python) = find("python3") else { return not_run("examples/redis-clients", "no python3") };
    let Some(path) = library("redis-clients") else { return };
    check_example(|| {
        let mut command = Command::new(&python);
        command.env("PYTHONPATH", &path).arg(example("client.py")).arg(package);
        command
    });
}

#[test]
fn redis_py_throttles_checks_and_pipelines() {
    check_python("redis");
}

#[test]
fn valkey_py_throttles_checks_and_pipelines() {
    check_python("valkey");
}

#[test]
fn ioredis_throttles_checks_and_pipelines() {
    let Some(node) = find("node") else { return not_run("examples/redis-clients", "no node") };
    let Some(path) = library("ioredis") else { return };
    check_example(|| {
        let mut command = Command::new(&node);
        command.env("NODE_PATH", path.join("node_modules")).arg(example("client.cjs"));
        command
    });
}

#[test]
fn go_redis_throttles_checks_and_pipelines() {
    let folder = Folder::new();
    let Some(program) = build_go_module(&example("go"), &folder) else { return };
    check_example(|| Command::new(&program));
}

#[test]
fn redis_cli_and_redis_benchmark_work_as_with_redis() {
    let Some(cli) = find("redis-cli") else { return not_run("redis-cli", "it is not installed") };
    let Some(benchmark) = find("redis-benchmark") else {
        return not_run("redis-benchmark", "it is not installed");
    };
    let server = Server::start_in(&folder_with_token());
    let port = server.resp.port().to_string();
    let run = |program: &Path, args: &str| {
        let mut command = Command::new(program);
        command.env("REDISCLI_AUTH", TOKEN).args(["-p", &port]).args(args.split(' '));
        String::from_utf8_lossy(&command.output().expect("it runs").stdout).into_owned()
    };
    assert_eq!(run(&cli, "CL.THROTTLE a 15 30 60 1"), "0\n16\n15\n-1\n2\n");
    assert!(run(&cli, "-3 HELLO").contains("tollgate"));
    assert_eq!(run(&cli, "DEL a none"), "1\n");
    assert_eq!(run(&cli, "RESET"), "RESET\n");
    let load = format!("-a {TOKEN} -n 5000 -c 20 -P 8 -r 100 --csv CL.THROTTLE k:__rand_int__ 9 10 60");
    let table = run(&benchmark, &load);
    assert!(table.lines().any(|line| line.starts_with("\"CL.THROTTLE")), "{table}");
}

/// Sends commands one at a time and reads replies that are an array of five integers.
struct Throttler(BufReader<TcpStream>);

impl Throttler {
    fn to(address: SocketAddr) -> Throttler {
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        Throttler(BufReader::new(stream))
    }

    fn send(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("the server reads");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("a reply") > 0, "the connection stays open");
        line
    }

    fn call(&mut self, command: &str) -> [i64; 5] {
        assert_eq!(self.send(command), "*5\r\n", "{command}");
        [(); 5].map(|()| self.line().trim_start_matches(':').trim_end().parse().expect("an integer"))
    }
}

/// A Redis with redis-cell, and a node.
fn both(what: &str) -> Option<(Redis, Server)> {
    let Some(module) = find("libredis_cell.so") else {
        not_run(what, "scripts/servers builds redis-cell");
        return None;
    };
    let module = module.to_str().expect("a path in UTF-8");
    let redis = Redis::start_with(Make::Redis, what, &["--loadmodule", module])?;
    Some((redis, Server::start("rules: []")))
}

#[test]
fn bad_calls_are_errors_as_of_redis_cell() {
    let Some((redis, server)) = both("bad calls beside redis-cell") else { return };
    let mut theirs = Throttler::to(SocketAddr::from(([127, 0, 0, 1], redis.port)));
    let mut ours = Throttler::to(server.resp);
    for command in [
        "CL.THROTTLE",
        "CL.THROTTLE k",
        "CL.THROTTLE k 15 30",
        "CL.THROTTLE k 15 30 60 1 1",
        "CL.THROTTLE k x 30 60",
        "CL.THROTTLE k 15 y 60",
        "CL.THROTTLE k 15 30 1.5",
        "CL.THROTTLE k 15 30 60 w",
    ] {
        for client in [&mut theirs, &mut ours] {
            let reply = client.send(command);
            assert!(reply.starts_with('-'), "{command}: {reply}");
        }
    }
    for client in [&mut theirs, &mut ours] {
        assert_eq!(client.call("CL.THROTTLE k 15 30 60 0"), [0, 16, 16, -1, 0], "nothing was charged");
    }
}

/// Intervals of 50 ms to 20 s, so that keys are refilled between calls. The two are not called at the same instant, so
/// their states differ by at most the longest call of a key so far.
#[test]
fn keys_that_are_refilled_get_the_replies_of_redis_cell() {
    let Some((redis, server)) = both("refills beside redis-cell") else { return };
    let mut theirs = Throttler::to(SocketAddr::from(([127, 0, 0, 1], redis.port)));
    let mut ours = Throttler::to(server.resp);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let figures =
        [(4, 20, 1), (9, 3, 1), (2, 7, 2), (15, 30, 7), (5, 7, 61), (0, 3, 1), (1, 1, 20), (99, 60, 3)];
    let mut drift = [Duration::ZERO; 16];
    let mut refills = 0;
    let mut previous = [None; 16];
    for _ in 0..2_000 {
        let key = random.usize(..16);
        let (burst, count, period) = figures[key % figures.len()];
        let quantity = random.choice([0, 1, 1, 2, 5]).expect("not empty");
        let command = format!("CL.THROTTLE k{key} {burst} {count} {period} {quantity}");
        let begun = Instant::now();
        let expected = theirs.call(&command);
        let found = ours.call(&command);
        drift[key] = drift[key].max(begun.elapsed());
        let interval = f64::from(period) / f64::from(count);
        let apart = drift[key].as_secs_f64();
        let context =
            || format!("seed {seed}, {command}, {apart} s apart: {found:?}, redis-cell {expected:?}");
        assert_eq!(found[1], expected[1], "{}", context());
        if found[0] != expected[0] {
            // At the border of a refill, one is early by what they are apart.
            let wait = found[3].max(expected[3]);
            assert!(wait as f64 <= apart + 1.0, "{}", context());
            assert_eq!(ours.send(&format!("DEL k{key}")), ":1\r\n");
            assert_eq!(theirs.send(&format!("DEL k{key}")), ":1\r\n");
            drift[key] = Duration::ZERO;
            previous[key] = None;
            continue;
        }
        let tokens = (found[2] - expected[2]).abs() as f64;
        assert!(tokens <= (apart / interval).ceil(), "{}", context());
        for n in [3, 4] {
            // redis-cell rounds down, Tollgate up.
            let seconds = (found[n] - expected[n]).abs() as f64;
            assert!((found[n] < 0) == (expected[n] < 0) && seconds <= apart.ceil() + 1.0, "{}", context());
        }
        refills += i32::from(
            previous[key].is_some_and(|left| found[2] + i64::from(quantity) > left && found[0] == 0),
        );
        previous[key] = Some(found[2]);
        std::thread::sleep(Duration::from_millis(random.u64(..4)));
    }
    assert!(refills > 100, "keys are refilled: {refills} times");
}

/// The intervals are minutes and more, so a reply does not depend on which of the two was called first. redis-cell 0.2.2
/// rounds seconds down, Tollgate up.
#[test]
fn a_random_sequence_of_throttles_gets_the_replies_of_redis_cell() {
    let Some((redis, server)) = both("CL.THROTTLE beside redis-cell") else { return };
    let mut theirs = Throttler::to(SocketAddr::from(([127, 0, 0, 1], redis.port)));
    let mut ours = Throttler::to(server.resp);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sent = Vec::new();
    let mut limited = 0;
    for _ in 0..5_000 {
        let key = random.u8(..);
        let burst = random.choice([0, 1, 4, 15, 99]).expect("not empty");
        let count = random.choice([1, 2, 5, 30]).expect("not empty");
        let interval = random.choice([600, 1_200, 3_000, 86_400]).expect("not empty");
        let quantity = random.choice([0, 1, 1, 1, 2, 5, 40]).expect("not empty");
        let command = format!("CL.THROTTLE k{key} {burst} {count} {} {quantity}", count * interval);
        sent.push(command.clone());
        let expected = theirs.call(&command);
        let found = ours.call(&command);
        let history = || {
            let this_key: Vec<_> =
                sent.iter().filter(|sent| sent.contains(&format!(" k{key} "))).map(String::as_str).collect();
            format!("seed {seed}: {found:?}, redis-cell {expected:?}\n{}", this_key.join("\n"))
        };
        assert_eq!(found[..3], expected[..3], "{}", history());
        for n in [3, 4] {
            let is_same = found[n] == expected[n];
            let is_rounded = expected[n] >= 0 && (-1..=2).contains(&(found[n] - expected[n]));
            assert!(is_same || is_rounded, "{}", history());
        }
        limited += found[0];
    }
    assert!((500..4_500).contains(&limited), "both outcomes occur: {limited} of 5000 were limited");
}
