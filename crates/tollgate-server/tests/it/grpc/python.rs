//! grpcio with the published messages of Envoy (`xds-protos`), and its clients of the health service and of reflection.

use std::path::Path;
use std::process::Command;

use tollgate_testkit::{Server, find, not_run};

#[test]
fn clients_of_grpcio_are_served() {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers/grpc-clients");
    if find("python3").is_none() || !packages.is_dir() {
        return not_run("grpcio", "run scripts/servers");
    }
    let server = Server::start(
        "rules:
  - { id: per-user, key: user, limit: 3/m }
  - { id: login, match: POST /login, key: ip, limit: 1/d }
",
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/grpc/client.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(server.grpc.to_string()).env("PYTHONPATH", packages);
    let output = python.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
