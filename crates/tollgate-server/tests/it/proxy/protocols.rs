//! HTTP/2 and TLS on both sides, and connections that change their protocol.

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use tollgate_testkit::servers::nginx::Nginx;
use tollgate_testkit::{Client, Folder, Server, eventually, free_port, run};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

/// A certificate for localhost that signs itself, of a server.
pub fn certificate(folder: &Folder, name: &str) {
    self_signed(folder, name, "CA:FALSE");
}

/// A certificate for localhost that signs itself, of an authority.
pub fn authority_certificate(folder: &Folder, name: &str) {
    self_signed(folder, name, "CA:TRUE");
}

fn self_signed(folder: &Folder, name: &str, constraint: &str) {
    let cert = folder.path(&format!("{name}.pem"));
    let key = folder.path(&format!("{name}.key"));
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    command.args([
        "-subj",
        &format!("/CN={name}"),
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-addext",
        &format!("basicConstraints=critical,{constraint}"),
    ]);
    command.arg("-keyout").arg(key).arg("-out").arg(cert);
    assert_eq!(run(&mut command).code, Some(0));
}

/// What curl prints: the body, the status and the version.
fn curl(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "-w", " %{http_code} %{http_version}"]).args(args);
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

fn with_tls(folder: &Arc<Folder>, api: &Api) -> Server {
    certificate(folder, "front");
    folder.configure(&format!(
        "upstreams: ['{}']\nproxy: {{ tls: {{ cert: front.pem, key: front.key }} }}\nrules: [{{ id: two, limit: 2/h }}]",
        api.url()
    ));
    Server::start_in(folder)
}

#[test]
fn clients_may_use_either_version_with_and_without_tls() {
    let api = Api::echo();
    let plain = in_front_of(&api, "");
    let url = format!("http://{}/", plain.proxy);
    assert_eq!(curl(&["--http2-prior-knowledge", "-d", "body", &url]), "body 200 2");
    assert_eq!(curl(&["--http1.1", "-d", "body", &url]), "body 200 1.1");
    assert_eq!(curl(&["--http2", "-d", "body", &url]), "body 200 1.1", "an upgrade to HTTP/2 is not taken");
    assert_eq!(api.last().header("upgrade"), None);

    let folder = Folder::new();
    let server = with_tls(&folder, &api);
    let url = format!("https://localhost:{}/", server.proxy.port());
    let ca = folder.path("front.pem");
    let ca = ca.display().to_string();
    assert_eq!(curl(&["--http2", "--cacert", &ca, "-d", "body", &url]), "body 200 2");
    assert_eq!(api.last().header("x-forwarded-proto"), Some("https"));
    assert_eq!(curl(&["--http1.1", "--cacert", &ca, "-d", "body", &url]), "body 200 1.1");
    let denied = curl(&["--http2", "--cacert", &ca, "-o", "/dev/null", &url]);
    assert_eq!(denied, " 429 2");
}

#[test]
fn a_new_certificate_is_reloaded() {
    let api = Api::echo();
    let folder = Folder::new();
    let server = with_tls(&folder, &api);
    let subject = || {
        let connect = format!("127.0.0.1:{}", server.proxy.port());
        let shown = format!(
            "openssl s_client -connect {connect} </dev/null 2>/dev/null | openssl x509 -noout -subject"
        );
        run(Command::new("sh").args(["-c", &shown])).stdout
    };
    assert!(subject().contains("front"));
    certificate(&folder, "next");
    std::fs::rename(folder.path("next.key"), folder.path("front.key")).expect("possible");
    std::fs::rename(folder.path("next.pem"), folder.path("front.pem")).expect("possible");
    eventually("the new certificate is shown", || subject().contains("next"));
    std::fs::write(folder.path("front.pem"), "no certificate").expect("possible");
    server.wait_for_log("the certificate in force stays");
    assert!(subject().contains("next"));
}

#[test]
fn upstreams_may_use_either_version_with_and_without_tls() {
    let folder = Folder::new();
    certificate(&folder, "back");
    let tls = free_port();
    let plain = free_port();
    let old = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{tls} ssl http2; listen 127.0.0.1:{plain} http2; listen 127.0.0.1:{old};
         ssl_certificate {0}; ssl_certificate_key {1};
         location / {{ add_header x-saw \"$server_protocol $host $http_x_forwarded_host\"; return 200 hello; }} }}",
        folder.path("back.pem").display(),
        folder.path("back.key").display()
    );
    let what = "upstreams of either HTTP version";
    let Some(_nginx) = Nginx::start(what, &folder, &http, &[tls, plain, old]) else { return };
    for (upstream, saw) in [
        (format!("https://localhost:{tls}"), "HTTP/2.0 api.example.com api.example.com"),
        (format!("h2c://127.0.0.1:{plain}"), "HTTP/2.0 api.example.com api.example.com"),
        (format!("http://127.0.0.1:{old}"), "HTTP/1.1 api.example.com api.example.com"),
    ] {
        let proxy = "proxy: { upstream_tls: { ca: back.pem } }";
        folder.configure(&format!("upstreams: ['{upstream}']\n{proxy}\nstate_dir: .\n"));
        let server = Server::start_in(&folder);
        let answer = get(&server, "/", &[("host", "api.example.com")]);
        assert_eq!((answer.text().as_str(), answer.header("x-saw")), ("hello", Some(saw)), "{upstream}");
        let twice = curl(&[
            "--http2-prior-knowledge",
            "-H",
            "host: api.example.com",
            &format!("http://{}/", server.proxy),
        ]);
        assert_eq!(twice, "hello 200 2", "{upstream}");
    }
}

/// What an HTTP/2 server has seen of a request: its scheme, authority and path.
type Target = (String, String, String);

/// Answers every request on TLS with HTTP/2, and notes its target.
fn serve_http2_over_tls(folder: &Folder, seen: Arc<Mutex<Vec<Target>>>) -> (tokio::runtime::Runtime, u16) {
    let certificate = CertificateDer::from_pem_file(folder.path("back.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.path("back.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("it has them").with_no_client_auth().with_single_cert(vec![certificate], key);
    let mut config = config.expect("they belong together");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.expect("it speaks TLS");
                let mut connection = h2::server::handshake(stream).await.expect("it speaks HTTP/2");
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let uri = request.uri();
                    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
                    let scheme = uri.scheme_str().unwrap_or_default().to_owned();
                    seen.lock().expect("no panic").push((scheme, authority, uri.path().to_owned()));
                    respond.send_response(hyper::Response::new(()), true).expect("it is answered");
                }
            });
        }
    });
    (runtime, port)
}

/// A regression: health checks said `:scheme http` on TLS.
#[test]
fn requests_and_health_checks_of_an_upstream_on_tls_say_https() {
    let folder = Folder::new();
    certificate(&folder, "back");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (_runtime, port) = serve_http2_over_tls(&folder, Arc::clone(&seen));
    let proxy = "proxy: { upstream_tls: { ca: back.pem }, health: { path: /alive, every: 1s } }";
    folder.configure(&format!("upstreams: ['https://localhost:{port}']\n{proxy}\n"));
    let server = Server::start_in(&folder);
    let target = |authority: &str, path: &str| ("https".to_owned(), authority.to_owned(), path.to_owned());
    let expected = [
        target(&format!("localhost:{port}"), "/alive"),
        target("api.example.com", "/one"),
        target("api.example.com", "/two"),
    ];
    assert_eq!(get(&server, "/one", &[("host", "api.example.com")]).status, 200);
    let url = format!("http://{}/two", server.proxy);
    assert_eq!(curl(&["--http2-prior-knowledge", "-H", "host: api.example.com", &url]), " 200 2");
    eventually("the health check has come", || {
        let seen = seen.lock().expect("no panic");
        expected.iter().all(|expected| seen.contains(expected))
    });
    let others: Vec<_> =
        seen.lock().expect("no panic").iter().filter(|one| !expected.contains(one)).cloned().collect();
    assert_eq!(others, []);
}

#[test]
fn an_upstream_with_an_untrusted_certificate_gets_no_request() {
    let folder = Folder::new();
    certificate(&folder, "back");
    certificate(&folder, "other");
    let tls = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {0}; ssl_certificate_key {1};
         location / {{ return 200 hello; }} }}",
        folder.path("back.pem").display(),
        folder.path("back.key").display()
    );
    let Some(_nginx) = Nginx::start("an upstream without a known CA", &folder, &http, &[tls]) else { return };
    folder.configure(&format!(
        "upstreams: ['https://localhost:{tls}']\nproxy: {{ upstream_tls: {{ ca: other.pem }} }}\n"
    ));
    let server = Server::start_in(&folder);
    assert_eq!(get(&server, "/", &[]).status, 502);
    std::fs::rename(folder.path("back.pem"), folder.path("other.pem")).expect("possible");
    eventually("its certificate is trusted now", || get(&server, "/", &[]).status == 200);
}

#[test]
fn a_connection_may_change_its_protocol() {
    check_upgrade("websocket");
    check_upgrade("chat/2.1");
}

fn check_upgrade(protocol: &'static str) {
    let api = Api::start(move |request, stream| {
        assert_eq!(
            (request.header("upgrade"), request.header("connection")),
            (Some(protocol), Some("upgrade"))
        );
        stream
            .write_all(format!("HTTP/1.1 101 Switching Protocols\r\nupgrade: {protocol}\r\nconnection: upgrade\r\nsec-websocket-accept: x\r\n\r\nhello").as_bytes())
            .expect("the proxy reads");
        let mut heard = [0; 5];
        std::io::Read::read_exact(stream, &mut heard).expect("the client speaks");
        stream.write_all(&heard).expect("the proxy reads");
        false
    });
    let server = in_front_of(&api, "rules: [{ id: two, limit: 2/h }]");
    let mut client = Client::to(server.proxy);
    client.write(format!("GET /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\nsec-websocket-key: k\r\n\r\n").as_bytes());
    let head = client.head();
    assert_eq!((head.status, head.header("upgrade")), (101, Some(protocol)));
    assert_eq!(
        (head.header("connection"), head.header("sec-websocket-accept")),
        (Some("upgrade"), Some("x"))
    );
    assert_eq!(client.read(5), b"hello");
    client.write(b"world");
    assert_eq!(client.read(5), b"world");
    assert!(client.try_answer().is_none(), "the end of one side is the end of the other");
}

#[test]
fn a_declined_upgrade_is_an_ordinary_response() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    client.write(b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.request("GET", "/", &[], b"").status, 200);
}

#[test]
fn an_upgrade_to_http_is_never_passed_on() {
    // Behind it, requests would pass unseen.
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let headers = [
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
    ];
    assert_eq!(get(&server, "/", &headers).status, 200);
    let seen = api.last();
    for name in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[test]
fn trailers_cross_from_one_version_to_the_other() {
    let api = Api::saying(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: grpc-status\r\n\r\n3\r\nabc\r\n0\r\ngrpc-status: 0\r\n\r\n",
    );
    let inner = in_front_of(&api, "");
    let outer = Server::start(&format!("upstreams: ['h2c://{}']\n", inner.proxy));
    let mut client = Client::to(outer.proxy);
    client.write(
        b"POST / HTTP/1.1\r\nhost: x\r\nte: trailers\r\ntransfer-encoding: chunked\r\ntrailer: x-md5\r\n\r\n2\r\nhi\r\n0\r\nx-md5: 9\r\n\r\n",
    );
    let answer = client.answer();
    assert_eq!((answer.text().as_str(), answer.header("grpc-status")), ("abc", Some("0")));
    assert_eq!(api.last().trailers, [("x-md5".to_owned(), "9".to_owned())]);
}
