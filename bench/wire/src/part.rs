//! The parts of a run: which contestants take part, what they are sent, and their turns.

mod strict;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::grpc_load::GrpcLoad;
use crate::load::Load;
use crate::process::{Server, find, free_port, tempfile};
use crate::request::Request;
use crate::{LOAD_CPU, SERVER_CPU};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Resp,
    Pipeline,
    Http,
    Grpc,
    /// gRPC with several streams per connection.
    Streams,
    /// Envoy's rate limit requests as JSON, counted in Redis before each answer.
    Strict,
    /// The same over gRPC.
    StrictGrpc,
    Proxy,
}

/// A tonic server that answers a constant.
pub const TONIC: &str = "tonic, a constant";
pub const RATELIMIT: &str = "envoyproxy/ratelimit";

#[derive(Clone, Copy)]
pub struct Effort {
    rounds: usize,
    round: Duration,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 7, round: Duration::from_millis(2000) };
    pub const QUICK: Effort = Effort { rounds: 3, round: Duration::from_millis(1000) };
}

const WARM_UP: Duration = Duration::from_millis(200);
/// The longest time in which a contestant is given its keys.
const FILL: Duration = Duration::from_secs(60);
const FILL_PIPELINE: usize = 16;

/// The requests and the processor time of one turn.
pub struct Turn {
    pub per_second: f64,
    pub cpu_micros: f64,
}

pub struct Contestant {
    pub name: &'static str,
    server: Rc<Server>,
    port: u16,
    request: Request,
    /// Sent once for each key before the first turn.
    fill: Option<Request>,
    fill_pipeline: usize,
    pub turns: Vec<Turn>,
}

/// As redis-cell computes it, by the time of the server.
const LUA: &str = "local now=redis.call('TIME') now=now[1]*1000000+now[2] \
local interval=ARGV[3]*1000000/ARGV[2] local capacity=ARGV[1]+1 local cost=tonumber(ARGV[4]) \
local tat=math.max(tonumber(redis.call('GET',KEYS[1]) or now),now) \
local next=tat+interval*cost local over=next-now-interval*capacity \
if over>0 then return {1,capacity,0,math.ceil(over/1000000),math.ceil((tat-now)/1000000)} end \
redis.call('SET',KEYS[1],string.format('%.0f',next),'PX',math.ceil((next-now)/1000)) \
return {0,capacity,math.floor((capacity*interval-(next-now))/interval),-1,math.ceil((next-now)/1000000)}";

impl Part {
    pub const ALL: [Part; 8] = [
        Part::Resp,
        Part::Pipeline,
        Part::Http,
        Part::Grpc,
        Part::Streams,
        Part::Strict,
        Part::StrictGrpc,
        Part::Proxy,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Part::Resp => "resp",
            Part::Pipeline => "pipeline",
            Part::Http => "http",
            Part::Grpc => "grpc",
            Part::Streams => "streams",
            Part::Strict => "strict",
            Part::StrictGrpc => "strict-grpc",
            Part::Proxy => "proxy",
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Part::Resp => "CL.THROTTLE, 1 M keys, 50 connections, no pipeline",
            Part::Pipeline => "CL.THROTTLE, 1 M keys, 50 connections, pipelines of 16",
            Part::Http => "POST /v1/check, 1 M users, 64 connections",
            Part::Grpc => "ShouldRateLimit, 1 M users, 50 connections of one stream",
            Part::Streams => "ShouldRateLimit, 1 M users, 8 connections of 32 streams",
            Part::Strict => {
                "POST /json counted in Redis, 1 M users, 64 connections; Redis is on the processor of the load"
            }
            Part::StrictGrpc => "ShouldRateLimit counted in Redis, 1 M users, 50 connections of one stream",
            Part::Proxy => "a proxied GET, 64 connections; the upstream is on the processor of the load",
        }
    }

    const fn connections(self) -> usize {
        match self {
            Part::Resp | Part::Pipeline | Part::Grpc | Part::StrictGrpc => 50,
            Part::Streams => 8,
            Part::Http | Part::Strict | Part::Proxy => 64,
        }
    }

    const fn pipeline(self) -> usize {
        match self {
            Part::Pipeline => 16,
            Part::Streams => 32,
            Part::Resp | Part::Http | Part::Grpc | Part::Strict | Part::StrictGrpc | Part::Proxy => 1,
        }
    }

    /// Starts the contestants and gives each its turn in every round, each round beginning with another one.
    pub fn run(self, effort: Effort) -> Vec<Contestant> {
        let mut upstream = None; // an API, or Redis
        let mut contestants = match self {
            Part::Resp | Part::Pipeline => resp_contestants(),
            Part::Http => http_contestants(),
            Part::Grpc | Part::Streams => grpc_contestants(),
            Part::Strict | Part::StrictGrpc => strict::contestants(self, &mut upstream),
            Part::Proxy => proxy_contestants(&mut upstream),
        };
        for contestant in &mut contestants {
            if let Some(fill) = contestant.fill.take() {
                eprint!("\r{} keys of {:40}", self.name(), contestant.name);
                Load::new(contestant.port, self.connections(), contestant.fill_pipeline, &fill).fill(FILL);
            }
        }
        for round in 0..effort.rounds {
            contestants.rotate_left(usize::from(round > 0));
            for contestant in &mut contestants {
                eprint!("\r{} round {} {:40}", self.name(), round + 1, contestant.name);
                contestant.take_turn(self, effort.round);
            }
        }
        eprintln!("\r{:60}", "");
        contestants
    }
}

impl Contestant {
    fn take_turn(&mut self, part: Part, duration: Duration) {
        let mut before = Duration::ZERO;
        let started = || before = self.server.cpu();
        let (answered, elapsed) = match part {
            Part::Grpc | Part::Streams | Part::StrictGrpc => {
                GrpcLoad::new(self.port, part.connections(), part.pipeline()).run(WARM_UP, duration, started)
            }
            _ => {
                let mut load = Load::new(self.port, part.connections(), part.pipeline(), &self.request);
                load.run(WARM_UP, duration, started)
            }
        };
        let cpu = self.server.cpu().saturating_sub(before);
        let answered = answered as f64;
        let per_second = answered / elapsed.as_secs_f64();
        self.turns.push(Turn { per_second, cpu_micros: cpu.as_secs_f64() * 1e6 / answered });
    }

    fn new(name: &'static str, server: &Rc<Server>, port: u16, request: Request) -> Contestant {
        Contestant {
            name,
            server: Rc::clone(server),
            port,
            request,
            fill: None,
            fill_pipeline: 1,
            turns: Vec::new(),
        }
    }

    fn filled(self) -> Contestant {
        let fill = Some(self.request.clone());
        Contestant { fill, ..self }
    }

    fn filled_in_pipelines(self) -> Contestant {
        Contestant { fill_pipeline: FILL_PIPELINE, ..self.filled() }
    }
}

fn own_server(name: &str) -> Option<(Rc<Server>, u16)> {
    let program = std::env::current_exe().expect("the path of this program");
    let port = free_port();
    let server = Server::start(SERVER_CPU, &program, &["serve", name, &port.to_string()], &[port])?;
    Some((Rc::new(server), port))
}

fn tollgate_program() -> PathBuf {
    std::env::var_os("TOLLGATE").expect("TOLLGATE names the binary").into()
}

/// A limiter with its listeners.
struct Limiter {
    server: Rc<Server>,
    http: u16,
    resp: u16,
    grpc: u16,
}

fn tollgate() -> Option<Limiter> {
    tollgate_with("")
}

/// A node with more settings.
fn tollgate_with(settings: &str) -> Option<Limiter> {
    let [http, resp, grpc, admin] = [(); 4].map(|()| free_port());
    let folder = tempfile("tollgate");
    std::fs::create_dir_all(&folder).expect("a folder for its state");
    let config = folder.join("tollgate.yaml");
    let text = format!(
        "listen: {{ http: 127.0.0.1:{http}, admin: 127.0.0.1:{admin}, resp: 127.0.0.1:{resp}, grpc: 127.0.0.1:{grpc} }}\n\
         rules_db: none\n{settings}rules: [{{ id: each, key: user, limit: 1000000/h }}]\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let args = ["serve", "-c", config.to_str().expect("a path in UTF-8")];
    let server = Server::start(SERVER_CPU, &tollgate_program(), &args, &[http, resp, grpc])?;
    Some(Limiter { server: Rc::new(server), http, resp, grpc })
}

fn throttlecrab() -> Option<Limiter> {
    let program = find("throttlecrab-server")?;
    let [http, resp] = [(); 2].map(|()| free_port());
    let ports = [http.to_string(), resp.to_string()];
    let args = [
        "--http",
        "--http-host",
        "127.0.0.1",
        "--http-port",
        &ports[0],
        "--redis",
        "--redis-host",
        "127.0.0.1",
        "--redis-port",
        &ports[1],
        "--store",
        "periodic",
        "--store-capacity",
        "2000000",
        "--log-level",
        "error",
    ];
    let server = Server::start(SERVER_CPU, &program, &args, &[http, resp])?;
    Some(Limiter { server: Rc::new(server), http, resp, grpc: 0 })
}

/// Replies of `CL.THROTTLE` are six lines.
fn throttle(command: &str) -> Request {
    Request::resp(&format!("{command} key:0000000 1000 1000 3600 1"), 6)
}

fn resp_contestants() -> Vec<Contestant> {
    let mut contestants = Vec::new();
    if let Some((server, port)) = own_server("floor-resp") {
        contestants.push(Contestant::new("floor", &server, port, throttle("CL.THROTTLE")));
    }
    if let Some(tollgate) = tollgate() {
        let contestant =
            Contestant::new("Tollgate", &tollgate.server, tollgate.resp, throttle("CL.THROTTLE"));
        contestants.push(contestant.filled_in_pipelines());
    }
    contestants.extend(redis_contestants().unwrap_or_default());
    if let Some(crab) = throttlecrab() {
        contestants
            .push(Contestant::new("throttlecrab", &crab.server, crab.resp, throttle("THROTTLE")).filled());
    }
    contestants
}

fn redis_contestants() -> Option<Vec<Contestant>> {
    let program = find("redis-server")?;
    let port = free_port();
    let port_text = port.to_string();
    let mut args = vec!["--port", &port_text, "--bind", "127.0.0.1", "--save", ""];
    let module = find("libredis_cell.so");
    if let Some(module) = &module {
        args.extend(["--loadmodule", module.to_str().expect("a path in UTF-8")]);
    }
    let redis = Rc::new(Server::start(SERVER_CPU, &program, &args, &[port])?);
    let mut contestants = vec![
        Contestant::new("Redis PING", &redis, port, Request::resp("PING", 1)),
        Contestant {
            fill: Some(Request::resp("SET value:0000000 12345", 1)),
            fill_pipeline: FILL_PIPELINE,
            ..Contestant::new("Redis GET", &redis, port, Request::resp("GET value:0000000", 2))
        },
    ];
    if module.is_some() {
        contestants
            .push(Contestant::new("redis-cell", &redis, port, throttle("CL.THROTTLE")).filled_in_pipelines());
    }
    let script = ["EVAL", LUA, "1", "lua:0000000", "1000", "1000", "3600", "1"];
    let lua = Request::resp_words(&evalsha(port, &script), 6);
    contestants.push(Contestant::new("a Lua script", &redis, port, lua).filled_in_pipelines());
    Some(contestants)
}

/// Loads the script, and returns the words of a call by its hash.
fn evalsha(port: u16, words: &[&str]) -> Vec<String> {
    use std::io::{BufRead, BufReader, Write};
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("Redis accepts");
    let load = Request::resp_words(&["SCRIPT", "LOAD", words[1]].map(str::to_owned), 2);
    (&stream).write_all(&load.repeated(1)).expect("Redis reads");
    let mut lines = BufReader::new(&stream).lines();
    let hash = lines.nth(1).and_then(Result::ok).expect("the script's hash");
    ["EVALSHA".to_owned(), hash].into_iter().chain(words[2..].iter().map(|&word| word.to_owned())).collect()
}

fn http_contestants() -> Vec<Contestant> {
    let check = Request::post("/v1/check", r#"{"method":"GET","path":"/orders","user":"user-0000000"}"#);
    let mut contestants = Vec::new();
    for (name, server) in [("floor", "floor-http"), ("axum, constant JSON", "axum")] {
        if let Some((server, port)) = own_server(server) {
            contestants.push(Contestant::new(name, &server, port, check.clone()));
        }
    }
    if let Some(tollgate) = tollgate() {
        contestants
            .push(Contestant::new("Tollgate", &tollgate.server, tollgate.http, check.clone()).filled());
    }
    if let Some((server, port)) = own_server("limitador") {
        contestants.push(Contestant::new("limitador behind axum", &server, port, check).filled());
    }
    if let Some(crab) = throttlecrab() {
        let body =
            r#"{"key":"user-0000000","max_burst":1000,"count_per_period":1000,"period":3600,"quantity":1}"#;
        let request = Request::post("/throttle", body);
        contestants.push(Contestant::new("throttlecrab", &crab.server, crab.http, request).filled());
    }
    contestants
}

fn grpc_contestants() -> Vec<Contestant> {
    // Calls are made by the load generator for gRPC.
    let contestant = |name, server: &Rc<Server>, port| Contestant::new(name, server, port, Request::get("/"));
    let mut contestants = Vec::new();
    let program = std::env::current_exe().expect("the path of this program").with_file_name("grpc-constant");
    let port = free_port();
    if let Some(server) = Server::start(SERVER_CPU, &program, &[&format!("127.0.0.1:{port}")], &[port]) {
        contestants.push(contestant(TONIC, &Rc::new(server), port));
    }
    if let Some(tollgate) = tollgate() {
        contestants.push(contestant("Tollgate", &tollgate.server, tollgate.grpc));
    }
    contestants
}

fn proxy_contestants(upstream: &mut Option<Server>) -> Vec<Contestant> {
    let Some(nginx) = find("nginx") else { return Vec::new() };
    let [api, theirs, ours] = [(); 3].map(|()| free_port());
    let folder = tempfile("nginx");
    std::fs::create_dir_all(&folder).expect("a folder for nginx");
    let start = |cpu, name: &str, http: String, port| {
        let at = folder.join(name);
        let base = at.display();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {base}-{what};"));
        let paths = paths.join(" ");
        let text = format!(
            "worker_processes 1; daemon off; pid {base}.pid; error_log {base}.err crit; events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; {paths} {http} }}\n"
        );
        std::fs::write(&at, text).expect("a configuration");
        let args = ["-p", folder.to_str().expect("UTF-8"), "-c", at.to_str().expect("UTF-8")];
        Server::start(cpu, &nginx, &args, &[port])
    };
    let constant =
        format!("server {{ listen 127.0.0.1:{api}; location / {{ return 200 \"hello from the API\"; }} }}");
    *upstream = start(LOAD_CPU, "api", constant, api);
    let limited = format!(
        "limit_req_zone $binary_remote_addr zone=one:10m rate=1000000r/s;
         upstream api {{ server 127.0.0.1:{api}; keepalive 128; keepalive_requests 100000000; }}
         server {{ listen 127.0.0.1:{theirs}; location / {{ limit_req zone=one burst=1000000 nodelay; proxy_pass http://api;
           proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $http_host;
           proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; }} }}"
    );
    let mut contestants = Vec::new();
    if let Some(server) = start(SERVER_CPU, "front", limited, theirs) {
        contestants.push(Contestant::new("nginx", &Rc::new(server), theirs, Request::get("/")));
    }
    let to = format!("http://127.0.0.1:{api}");
    let listen = format!("127.0.0.1:{ours}");
    let args = ["proxy", "--to", &to, "--limit", "1000000000/s", "--listen", &listen];
    if let Some(server) = Server::start(SERVER_CPU, &tollgate_program(), &args, &[ours]) {
        contestants.push(Contestant::new("Tollgate", &Rc::new(server), ours, Request::get("/")));
    }
    contestants
}
