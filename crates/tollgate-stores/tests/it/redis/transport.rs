//! Unix sockets, and TLS with and without a client's certificate.

use std::fs;

use rcgen::{CertificateParams, KeyPair};
use tollgate::internal::Shape;
use tollgate_testkit::central::{hit, limit, own};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{ready, usual};
use tollgate_testkit::{Folder, free_port};

#[tokio::test]
async fn a_unix_socket_is_a_server_too() {
    let folder = Folder::new();
    let path = folder.path("redis.sock");
    let socket = path.to_str().expect("a plain path");
    let Some(_server) = Redis::start_with(Make::Redis, "Unix sockets of Redis", &["--unixsocket", socket])
    else {
        return;
    };
    let store = ready(&format!("redis+unix://{socket}")).await;
    assert!(hit(&store, &own("login", "user:1", limit("5/h", Shape::GCRA))).await.is_ok());
}

/// A certificate of its own authority, for the server and its clients.
fn write_certificates(folder: &Folder) -> [String; 3] {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_cert = authority.self_signed(&key).expect("a certificate");
    let issuer = rcgen::Issuer::new(authority, &key);
    let leaf_key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let leaf =
        CertificateParams::new(names).expect("names").signed_by(&leaf_key, &issuer).expect("a certificate");
    [("ca.pem", authority_cert.pem()), ("cert.pem", leaf.pem()), ("key.pem", leaf_key.serialize_pem())].map(
        |(name, pem)| {
            fs::write(folder.path(name), pem).expect("a file can be written");
            folder.path(name).to_str().expect("a plain path").to_owned()
        },
    )
}

#[tokio::test]
async fn tls_trusts_the_authority_that_is_named_and_no_other() {
    let folder = Folder::new();
    let [ca, cert, key] = write_certificates(&folder);
    let port = free_port();
    let arguments = ["--tls-port", &port.to_string(), "--tls-cert-file", &cert, "--tls-key-file", &key];
    let arguments = [&arguments[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "yes"]].concat();
    let Some(_server) = Redis::start_with(Make::Redis, "TLS to Redis", &arguments) else { return };
    let charge = own("login", "user:1", limit("5/h", Shape::GCRA));
    for host in ["localhost", "127.0.0.1"] {
        let store = ready(&format!("rediss://{host}:{port}?ca={ca}&cert={cert}&key={key}")).await;
        assert!(hit(&store, &charge).await.is_ok());
    }
    let stranger = usual(&format!("rediss://localhost:{port}?cert={cert}&key={key}"));
    assert!(stranger.ready(std::time::Duration::from_millis(500)).await.is_err());
    let trouble = stranger.health()[0].trouble.clone().unwrap_or_default();
    assert!(trouble.contains("UnknownIssuer"), "{trouble}");
    let nameless = usual(&format!("rediss://localhost:{port}?ca={ca}"));
    assert!(nameless.ready(std::time::Duration::from_millis(500)).await.is_err());
}
