//! TLS to PostgreSQL, and a password that is in no address.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tollgate_stores::rules::{Edit, Precondition, RulesDb};
use tollgate_testkit::servers::postgres::Postgres;

use crate::rules_db::scenario::{author, rule};

const PASSWORD: &str = "s3cret/of+ours";
/// Connections need TLS and the password.
const ONLY_TLS: &str = "hostssl all all 127.0.0.1/32 scram-sha-256\n";

/// A server with TLS, and the files of its clients.
struct Guarded {
    server: Postgres,
    authority: PathBuf,
    stranger: PathBuf,
}

/// A new authority: what it signs with, and its certificate.
fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    (Issuer::new(params, key), certificate)
}

impl Guarded {
    /// A server whose certificate is for `name`.
    async fn start(name: &str) -> Option<Guarded> {
        let mut server = Postgres::start("TLS to PostgreSQL")?;
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("a new server trusts");
        let connection = tokio::spawn(connection);
        let command = format!("ALTER USER postgres PASSWORD '{PASSWORD}'");
        client.batch_execute(&command).await.expect("it takes a password");
        drop(client);
        connection.await.expect("it has ended").ok();
        let (issuer, ours) = authority("ours");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        server.write("server.crt", &certificate);
        server.write("server.key", &key.serialize_pem());
        server.write("pg_hba.conf", ONLY_TLS);
        server.write("password", &format!("{PASSWORD}\n"));
        let (authority, stranger) =
            (server.write("ca.pem", &ours), server.write("other.pem", &authority("other").1));
        server.restart_with(&["ssl=on"]);
        Some(Guarded { server, authority, stranger })
    }

    async fn open(&self, options: &str) -> Result<RulesDb, String> {
        let url =
            format!("postgres://postgres@{}/postgres?password_file=password{options}", self.server.host());
        self.open_at(&url).await
    }

    async fn open_at(&self, url: &str) -> Result<RulesDb, String> {
        RulesDb::open(url, self.authority.parent().expect("a folder"))
            .await
            .map_err(|error| error.to_string())
    }

    async fn refusal(&self, options: &str) -> String {
        let message = self.open(options).await.map(|_| ()).expect_err(options);
        assert!(!message.contains(PASSWORD), "{message}");
        message
    }
}

fn root(path: &Path) -> String {
    format!("&sslrootcert={}", path.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_for_its_certificate_its_authority_and_its_name() {
    let Some(guarded) = Guarded::start("127.0.0.1").await else { return };
    let ours = root(&guarded.authority);
    let strange = root(&guarded.stranger);
    let db = guarded.open(&format!("&sslmode=verify-full{ours}")).await.expect("the certificate fits");
    let edits = vec![Edit::rule(rule("a", 5), Precondition::Any)];
    assert_eq!(db.edit(author("ann"), edits).await.expect("it can be written").len(), 1);
    for options in ["&sslmode=verify-full&sslrootcert=ca.pem".to_owned(), "&sslmode=require".to_owned()] {
        let db = guarded.open(&options).await.expect("the certificate fits");
        assert_eq!(db.version().await.expect("it can be read").number(), 1, "{options}");
    }
    for options in [format!("&sslmode=verify-full{strange}"), format!("&sslmode=require{strange}")] {
        let message = guarded.refusal(&options).await;
        assert!(message.contains("UnknownIssuer"), "{message}");
    }
    let message = guarded.refusal("&sslmode=verify-full&sslrootcert=nowhere.pem").await;
    assert!(message.contains("sslrootcert") && message.contains("nowhere.pem"), "{message}");
    let message = guarded.refusal("").await;
    assert!(message.contains("no encryption"), "nothing is sent in the clear unless configured: {message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_is_accepted_only_without_name_verification() {
    let Some(guarded) = Guarded::start("elsewhere.example").await else { return };
    let ours = root(&guarded.authority);
    let message = guarded.refusal(&format!("&sslmode=verify-full{ours}")).await;
    assert!(message.contains("not valid for name"), "{message}");
    for options in [format!("&sslmode=verify-ca{ours}"), format!("&sslmode=require{ours}")] {
        guarded.open(&options).await.expect(&options);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_file_is_read_at_every_connection() {
    let Some(guarded) = Guarded::start("127.0.0.1").await else { return };
    guarded.server.write("password", "wrong");
    let message = guarded.refusal("&sslmode=require").await;
    assert!(message.contains("password authentication failed"), "{message}");
    guarded.server.write("password", PASSWORD);
    guarded.open("&sslmode=require").await.expect("the right one");
    let url = format!("postgres://postgres@{}/postgres?sslmode=require", guarded.server.host());
    let message = guarded.open_at(&format!("{url}&password_file=nowhere")).await.expect_err("no such file");
    assert!(message.contains("password_file") && message.contains("nowhere"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_if_tls_is_required() {
    let Some(server) = Postgres::start("TLS to PostgreSQL") else { return };
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = format!("{}?sslmode={mode}", server.url());
        let message = RulesDb::open(&url, Path::new("")).await.map(|_| ()).expect_err(mode).to_string();
        assert!(
            message.contains("does not support TLS") || message.contains("no trusted certificates"),
            "{message}"
        );
    }
}
