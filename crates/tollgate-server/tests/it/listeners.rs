//! How connections of every listener begin: TLS, PROXY headers, Unix sockets.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use tollgate_testkit::{Answer, Client, Folder, Server, binary, eventually, find, not_run, run, tollgate};

use crate::grpc::bad_input::{call, send_after};
use crate::proxy::api::Api;
use crate::proxy::protocols::{authority_certificate, certificate};
use crate::resp::RespClient;

const RULES: &str = "rules_db: none\nrules: [{ id: each, key: ip, limit: 1/h }]\n";

/// The body and status that curl prints, or its exit code.
fn curl(args: &[&str]) -> Result<String, Option<i32>> {
    let mut command = Command::new("curl");
    let ran = run(command.args(["-sS", "--max-time", "20", "-w", " %{http_code}"]).args(args));
    if ran.code == Some(0) { Ok(ran.stdout) } else { Err(ran.code) }
}

fn with_tls(folder: &Arc<Folder>, api: &Api, client_ca: &str) -> Server {
    certificate(folder, "front");
    let listeners = ["http", "grpc", "resp", "admin", "proxy"];
    let each = listeners.map(|name| format!("{name}: {{ cert: front.pem, key: front.key{client_ca} }}"));
    folder.configure(&format!("upstreams: ['{}']\ntls: {{ {} }}\n{RULES}", api.url(), each.join(", ")));
    Server::start_in(folder)
}

#[test]
fn every_listener_speaks_tls() {
    let api = Api::echo();
    let folder = Folder::new();
    let server = with_tls(&folder, &api, "");
    let ca = folder.path("front.pem").display().to_string();
    let url = |port: u16, path: &str| format!("https://localhost:{port}{path}");
    let check =
        curl(&["--cacert", &ca, "-d", "{}", "-o", "/dev/null", &url(server.http.port(), "/v1/check")]);
    assert_eq!(check.as_deref(), Ok(" 200"));
    let ready = curl(&["--cacert", &ca, "-o", "/dev/null", &url(server.admin.port(), "/readyz")]);
    assert_eq!(ready.as_deref(), Ok(" 200"));
    let proxied = curl(&["--cacert", &ca, "-d", "body", &url(server.proxy.port(), "/")]);
    assert_eq!(proxied.as_deref(), Ok("body 200"));
    let script = format!(
        "printf 'PING\\r\\nQUIT\\r\\n' | openssl s_client -quiet -CAfile {ca} -connect 127.0.0.1:{} 2>/dev/null",
        server.resp.port()
    );
    assert!(run(Command::new("sh").args(["-c", &script])).stdout.starts_with("+PONG"));
    let script = format!(
        "openssl s_client -alpn h2 -CAfile {ca} -connect 127.0.0.1:{} </dev/null 2>/dev/null",
        server.grpc.port()
    );
    assert!(run(Command::new("sh").args(["-c", &script])).stdout.contains("ALPN protocol: h2"));
    let script =
        format!("openssl s_client -tls1_1 -connect 127.0.0.1:{} </dev/null 2>&1", server.http.port());
    assert_ne!(run(Command::new("sh").args(["-c", &script])).code, Some(0), "TLS 1.1 is refused");
    assert!(curl(&[&format!("http://localhost:{}/readyz", server.admin.port())]).is_err(), "without TLS");
}

#[test]
fn commands_call_an_address_with_tls_and_say_what_is_wrong_with_it() {
    let folder = Folder::new();
    certificate(&folder, "front");
    folder.configure(&format!("tls: {{ admin: {{ cert: front.pem, key: front.key }} }}\n{RULES}"));
    let server = Server::start_in(&folder);
    let status = |url: &str, ca: &str| {
        let mut command = binary();
        command.args(["status", "--admin", url]).env("SSL_CERT_FILE", folder.path(ca));
        run(&mut command)
    };
    let https = format!("https://localhost:{}", server.admin.port());
    let trusted = status(&https, "front.pem");
    assert_eq!(trusted.code, Some(0), "{trusted:?}");
    certificate(&folder, "other");
    let plain = format!("https://127.0.0.1:{}", server.http.port());
    let without_tls = format!("http://127.0.0.1:{}", server.admin.port());
    for (url, ca, hint) in [
        (&https, "other.pem", "name its issuer with SSL_CERT_FILE="),
        (&plain, "front.pem", "does it expect http:// instead of https://?"),
        (&without_tls, "front.pem", "does it expect https:// instead of http://?"),
    ] {
        let failed = status(url, ca);
        assert_eq!(failed.code, Some(4), "{failed:?}");
        assert!(failed.stderr.contains(hint), "{failed:?}");
    }
}

/// The advice was to trust its issuer, which was done already.
#[test]
fn the_certificate_of_an_authority_cannot_be_a_servers() {
    let folder = Folder::new();
    let cert = folder.path("ca.pem");
    authority_certificate(&folder, "ca");
    folder.configure(&format!("tls: {{ admin: {{ cert: ca.pem, key: ca.key }} }}\n{RULES}"));
    let server = Server::start_in(&folder);
    let url = format!("https://localhost:{}", server.admin.port());
    let failed = run(binary().args(["status", "--admin", &url]).env("SSL_CERT_FILE", cert));
    assert_eq!(failed.code, Some(4), "{failed:?}");
    assert!(failed.stderr.contains("basicConstraints=CA:FALSE"), "{failed:?}");
}

#[test]
fn a_client_certificate_is_required_where_its_authority_is_named() {
    let api = Api::echo();
    let folder = Folder::new();
    certificate(&folder, "client");
    let server = with_tls(&folder, &api, ", client_ca: client.pem");
    let [ca, cert, key] =
        ["front.pem", "client.pem", "client.key"].map(|name| folder.path(name).display().to_string());
    let url = format!("https://localhost:{}/readyz", server.admin.port());
    assert!(curl(&["--cacert", &ca, &url]).is_err(), "a client without a certificate is refused");
    certificate(&folder, "other");
    let [other, other_key] = ["other.pem", "other.key"].map(|name| folder.path(name).display().to_string());
    assert!(curl(&["--cacert", &ca, "--cert", &other, "--key", &other_key, &url]).is_err());
    let served = curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, "-o", "/dev/null", &url]);
    assert_eq!(served.as_deref(), Ok(" 200"));
}

/// What clients of others get from a listener with TLS, with these files of an authority, a certificate and a key.
fn secure_clients(server: &Server, files: &[&str]) -> Option<Vec<String>> {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
    let packages = ["grpc-clients", "redis-clients"].map(|name| servers.join(name));
    if find("python3").is_none() || !packages.iter().all(|folder| folder.is_dir()) {
        not_run("grpcio and redis-py over TLS", "run scripts/servers");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/secure_clients.py");
    let mut python = Command::new("python3");
    python.arg(script).args([server.grpc.port(), server.resp.port()].map(|port| port.to_string()));
    python.args(files.iter().map(|name| server.folder.path(name)));
    python.env("PYTHONPATH", std::env::join_paths(packages).expect("paths without a colon"));
    let ran = run(&mut python);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    Some(ran.stdout.lines().map(str::to_owned).collect())
}

#[test]
fn grpcio_and_redis_py_call_over_tls_with_a_certificate_of_their_own() {
    let api = Api::echo();
    let folder = Folder::new();
    let server = with_tls(&folder, &api, "");
    let Some(answers) = secure_clients(&server, &["front.pem"]) else { return };
    assert_eq!(answers, ["grpc OK", "resp [0, 5, 4]"]);

    let folder = Folder::new();
    certificate(&folder, "client");
    certificate(&folder, "other");
    let server = with_tls(&folder, &api, ", client_ca: client.pem");
    for (files, expected) in [
        (&["front.pem", "client.pem", "client.key"][..], ["grpc OK", "resp [0, 5, 4]"]),
        (&["front.pem"], ["grpc UNAVAILABLE", "resp refused"]),
        (&["front.pem", "other.pem", "other.key"], ["grpc UNAVAILABLE", "resp refused"]),
        (&["other.pem", "client.pem", "client.key"], ["grpc UNAVAILABLE", "resp refused"]),
    ] {
        assert_eq!(secure_clients(&server, files).unwrap_or_default(), expected, "{files:?}");
    }
    let [ca, cert, key] =
        ["front.pem", "client.pem", "client.key"].map(|name| folder.path(name).display().to_string());
    let url = format!("https://localhost:{}/v1/check", server.http.port());
    assert!(curl(&["--cacert", &ca, "-d", "{}", &url]).is_err(), "a client without a certificate is refused");
    let served =
        curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, "-d", "{}", "-o", "/dev/null", &url]);
    assert_eq!(served.as_deref(), Ok(" 200"));

    // A new certificate is in force for new connections of each listener.
    certificate(&folder, "front");
    server.signal("HUP");
    let files = ["front.pem", "client.pem", "client.key"];
    eventually("the new certificate is shown", || {
        secure_clients(&server, &files)
            .is_some_and(|answers| answers[0] == "grpc OK" && answers[1] != "resp refused")
    });
}

#[test]
fn a_bad_new_certificate_keeps_the_old_one_and_health_says_so() {
    let folder = Folder::new();
    certificate(&folder, "front");
    folder.configure(&format!("tls: {{ http: {{ cert: front.pem, key: front.key }} }}\n{RULES}"));
    let server = Server::start_in(&folder);
    let first = fs::read(folder.path("front.pem")).expect("a certificate");
    fs::write(folder.path("front.pem"), "no certificate").expect("it can be written");
    server.wait_for_log("the certificate in force stays");
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!(health["status"], "impaired", "{health}");
    assert!(health["tls"]["http"].as_str().is_some_and(|why| why.contains("front.pem")), "{health}");
    let status = tollgate(&["status", "--admin", &format!("http://{}", server.admin)]);
    assert_eq!(status.code, Some(1), "{status:?}");
    let line = status.stdout.lines().find(|line| line.starts_with("tls  ")).unwrap_or_default();
    assert!(
        line.contains("http: a new certificate was rejected: ") && line.contains("front.pem"),
        "{status:?}"
    );
    let url = format!("https://localhost:{}/v1/check", server.http.port());
    assert_eq!(curl(&["-k", "-d", "{}", "-o", "/dev/null", &url]).as_deref(), Ok(" 200"));
    fs::write(folder.path("front.pem"), first).expect("it can be written");
    server.signal("HUP");
    eventually("health is well again", || server.admin("GET", "/healthz", "").json()["tls"].is_null());
}

/// A request behind a PROXY header; `None` if the server closes the connection.
fn behind_header(server: &Server, header: &[u8]) -> Option<Answer> {
    let mut client = Client::to(server.proxy);
    client.write(header);
    client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    client.try_answer()
}

#[test]
fn a_proxy_header_of_a_trusted_peer_names_the_client() {
    let api = Api::echo();
    let config = format!("upstreams: ['{}']\nproxy_protocol: [proxy]\n{RULES}", api.url());
    let server = Server::start(&format!("{config}trusted_proxies: [127.0.0.1]\n"));
    let status = |header: &[u8]| behind_header(&server, header).map(|answer| answer.status);
    let first = b"PROXY TCP4 203.0.113.1 198.51.100.1 1000 80\r\n";
    assert_eq!([status(first), status(first)], [Some(200), Some(429)]);
    let second = second_version();
    assert_eq!([status(&second), status(&second)], [Some(200), Some(429)]);
    assert_eq!(status(b""), None, "a connection without a header is closed");
    assert_eq!(status(b"PROXY TCP4 203.0.113.1\r\n"), None);
    server.wait_for_log("PROXY header");

    let server = Server::start(&config);
    assert!(behind_header(&server, first).is_none(), "the sender is not trusted");
    server.wait_for_log("proxy_protocol is for peers in trusted_proxies");
}

/// A PROXY header of the second version, from 203.0.113.2.
fn second_version() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([203, 0, 113, 2, 198, 51, 100, 1, 4, 0, 0, 80]);
    header
}

/// The client's address is in the log line of a refused call, and decides whether a gateway may describe requests.
#[test]
fn a_proxy_header_names_the_client_on_http_grpc_and_resp() {
    let start = |trusted: &str| {
        let folder = Folder::new();
        folder.write("tokens", "check a-secret-of-the-callers app\n");
        Command::new("chmod").arg("600").arg(folder.path("tokens")).status().expect("chmod runs");
        let config = "proxy_protocol: [http, grpc, resp]\ntokens_file: tokens\n";
        folder.configure(&format!("{config}{trusted}{RULES}"));
        Server::start_in(&folder)
    };
    let server = start("trusted_proxies: [127.0.0.1, 203.0.113.2]\n");
    let first = &b"PROXY TCP4 203.0.113.1 198.51.100.1 1000 80\r\n"[..];
    let second = &second_version()[..];

    for (header, client) in [(first, "203.0.113.1"), (second, "203.0.113.2")] {
        let mut resp = RespClient::to(server.resp);
        resp.exchange(
            &[header, b"AUTH wrong\r\n"].concat(),
            "-WRONGPASS invalid token: AUTH expects a token of the role check\r\n",
        );
        let (head, _) = send_after(header, server.grpc, call("POST", "application/grpc"), b"");
        assert_eq!(head.headers()["grpc-status"], "16", "{head:?}");
        server.wait_for_log(&format!("peer={client}"));
    }
    let log = server.log();
    assert!(log.contains("AUTH refused") && log.contains("grpc call refused"), "{log}");

    let described = "x-forwarded-method: GET\r\nx-forwarded-uri: /\r\nx-forwarded-host: a\r\nx-forwarded-for: 198.51.100.9\r\n";
    let request = format!(
        "GET /v1/forward-auth HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a-secret-of-the-callers\r\n{described}\r\n"
    );
    let ask = |header: &[u8]| {
        let mut client = Client::to(server.http);
        client.write(&[header, request.as_bytes()].concat());
        client.try_answer().map(|answer| answer.status)
    };
    assert_eq!(ask(first), Some(403), "the client is no gateway");
    assert_eq!([ask(second), ask(second)], [Some(200), Some(429)], "this one is");

    let server = start("");
    for address in [server.http, server.grpc, server.resp] {
        for header in [first, second] {
            let mut client = Client::to(address);
            client.write(header);
            assert!(client.line().is_none(), "a sender that is not trusted is disconnected: {address}");
        }
    }
    server.wait_for_log("proxy_protocol is for peers in trusted_proxies");
}

/// A proxy behind a load balancer on this machine, with a bound on the connections of each client.
fn behind_load_balancer(folder: &Arc<Folder>, api: &Api, per_address: usize) -> Server {
    let ports = "http: '127.0.0.1:0', admin: '127.0.0.1:0', proxy: '127.0.0.1:0', resp: off, grpc: off";
    let config = format!(
        "listen: {{ {ports}, per_address: {per_address} }}\nrules_db: none\nupstreams: ['{}']\n\
         proxy_protocol: [proxy]\ntrusted_proxies: [127.0.0.1]\n",
        api.url()
    );
    Server::start_at(folder, &folder.write("tollgate.yaml", config))
}

/// Opens a connection of a client behind a load balancer.
fn connect_behind(server: &Server, client: &str) -> Client {
    let mut connection = Client::to(server.proxy);
    connection.write(format!("PROXY TCP4 {client} 198.51.100.1 1000 80\r\n").as_bytes());
    connection
}

fn open_connections(server: &Server) -> String {
    let text = server.admin("GET", "/metrics", "").text();
    let line = text.lines().find(|line| line.contains("tollgate_connections{listener=\"proxy\"}"));
    line.and_then(|line| line.split(' ').next_back()).unwrap_or_default().to_owned()
}

#[test]
fn a_client_behind_a_load_balancer_has_a_bounded_share_of_the_connections() {
    let api = Api::echo();
    let folder = Folder::new();
    let server = behind_load_balancer(&folder, &api, 2);
    let send = |client: &mut Client| {
        client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        client.try_answer().map(|answer| answer.status)
    };
    let mut first: Vec<_> = (0..2).map(|_| connect_behind(&server, "203.0.113.1")).collect();
    assert!(first.iter_mut().all(|client| send(client) == Some(200)));
    assert_eq!(send(&mut connect_behind(&server, "203.0.113.1")), None);
    server.wait_for_log("its address has too many");
    assert_eq!(send(&mut connect_behind(&server, "203.0.113.2")), Some(200), "another client");
    first.pop();
    eventually("a slot is free again", || send(&mut connect_behind(&server, "203.0.113.1")) == Some(200));
}

/// A tunnel was not a connection any more: one address could have any number of WebSockets.
#[test]
fn upgraded_connections_count_until_they_are_closed() {
    let api = Api::start(|_, stream| {
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: chat\r\nconnection: upgrade\r\n\r\nhello",
            )
            .expect("the proxy reads");
        stream.read_exact(&mut [0; 1]).ok(); // until the client closes
        false
    });
    let folder = Folder::new();
    let server = behind_load_balancer(&folder, &api, 3);
    let upgrade = || {
        let mut client = connect_behind(&server, "203.0.113.1");
        client.write(b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: chat\r\n\r\n");
        client
    };
    let mut tunnels: Vec<_> = (0..3).map(|_| upgrade()).collect();
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.head().status, 101);
        assert_eq!(tunnel.read(5), b"hello");
    }
    assert_eq!(open_connections(&server), "3");
    for _ in 0..5 {
        assert!(upgrade().try_answer().is_none(), "the address has its three connections");
    }
    tunnels.pop();
    eventually("a slot is free again", || upgrade().try_answer().is_some_and(|head| head.status == 101));
    drop(tunnels);
    eventually("all are closed", || open_connections(&server) == "0");
}

#[test]
fn a_listener_may_be_a_unix_socket() {
    let folder = Folder::new();
    let config = format!(
        "listen: {{ http: 'unix:http.sock', unix_mode: 600, admin: off, resp: off, grpc: off }}\n{RULES}"
    );
    folder.write("tollgate.yaml", config);
    let path = folder.path("http.sock");
    let socket = path.display().to_string();
    let check =
        || curl(&["--unix-socket", &socket, "-d", "{}", "-o", "/dev/null", "http://localhost/v1/check"]);
    let server = Server::start_in(&folder);
    assert_eq!(check().as_deref(), Ok(" 200"));
    let mode = fs::metadata(&path).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.kill();
    assert!(path.exists(), "a killed node leaves its socket");
    let server = Server::start_in(&folder);
    assert_eq!(check().as_deref(), Ok(" 200"), "the stale file is replaced");
    let (ended, _) = server.stop();
    assert!(ended.success() && !path.exists(), "a stop removes it");
    fs::write(&path, "data").expect("a file");
    let refused = run(tollgate_testkit::binary().arg("serve").arg("-c").arg(folder.path("tollgate.yaml")));
    assert!(refused.code != Some(0) && refused.stderr.contains("not a socket"), "{refused:?}");
    assert_eq!(fs::read(&path).expect("it is still there"), b"data");
}

/// The sockets that listen at a local IPv4 port (proc_net_tcp(5)).
#[cfg(target_os = "linux")]
fn listening_sockets(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let is_listening = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
    };
    table.lines().filter(is_listening).count()
}

/// The default port of `resp` or `grpc` is not configured: a second node, or one beside a Redis, starts without the listener.
#[test]
fn a_default_port_that_is_in_use_leaves_its_listener_off() {
    let nodes = ["a", "b"].map(|name| {
        let folder = Folder::new();
        let listen = "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0 }";
        let file = folder.write(&format!("{name}.yaml"), format!("{listen}\n{RULES}"));
        Server::start_at(&folder, &file)
    });
    let log = nodes[1].log();
    for listener in ["resp", "grpc"] {
        assert!(log.contains(&format!("{listener} is off; set listen.{listener}")), "{log}");
    }
    assert_eq!(nodes[1].check(&json!({ "user": "ann" })).status, 200);
}

#[cfg(target_os = "linux")]
#[test]
fn each_worker_listens_and_a_second_node_on_the_same_port_is_refused() {
    let api = Api::echo();
    let folder = Folder::new();
    folder.configure(&format!("upstreams: ['{}']\n{RULES}", api.url()));
    let server = Server::start_in(&folder);
    let workers = std::thread::available_parallelism().expect("known").get();
    for address in [server.http, server.grpc, server.resp, server.proxy] {
        eventually("a socket for each worker", || listening_sockets(address.port()) == workers);
    }
    assert_eq!(listening_sockets(server.admin.port()), 1);
    for listener in ["http", "admin"] {
        let address = if listener == "http" { server.http } else { server.admin };
        let second = Folder::new();
        let others = ["http", "admin", "grpc", "resp"].map(|name| match name == listener {
            true => format!("{name}: '{address}'"),
            false => format!("{name}: off"),
        });
        let config = second.write("tollgate.yaml", format!("listen: {{ {} }}\n{RULES}", others.join(", ")));
        let refused = run(tollgate_testkit::binary().arg("serve").arg("-c").arg(config));
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(
            refused.stderr.contains(&format!("cannot listen on {address} for {listener}"))
                && refused.stderr.contains("another process has it"),
            "{refused:?}"
        );
    }
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
}
