//! How connections of every listener begin: TLS, PROXY headers, Unix sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use tollgate_testkit::{Answer, Client, Folder, Server, eventually, run};

use crate::proxy::api::Api;
use crate::proxy::protocols::certificate;

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
    let mut second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    second.extend([203, 0, 113, 2, 198, 51, 100, 1, 4, 0, 0, 80]);
    assert_eq!([status(&second), status(&second)], [Some(200), Some(429)]);
    assert_eq!(status(b""), None, "a connection without a header is closed");
    assert_eq!(status(b"PROXY TCP4 203.0.113.1\r\n"), None);
    server.wait_for_log("PROXY header");

    let server = Server::start(&config);
    assert!(behind_header(&server, first).is_none(), "the sender is not trusted");
    server.wait_for_log("proxy_protocol is for peers in trusted_proxies");
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
