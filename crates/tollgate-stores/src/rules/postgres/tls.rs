//! TLS to the servers, by rustls and `tokio-postgres-rustls`, which binds the login to the server's certificate where the
//! server offers it (SCRAM-SHA-256-PLUS). What is ours is the meaning of `sslmode`.
//!
//! A server that is not verified need not offer the binding, so only `verify-full` is safe where another host can answer
//! in the server's place.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, WebPkiSupportedAlgorithms, ring::default_provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::tls;

/// How a server's identity is verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CertificateCheck {
    /// Not at all: traffic is encrypted, but any server is accepted.
    Unverified,
    /// The certificate is issued by a trusted authority.
    Chain,
    /// The certificate is also valid for the host in the address.
    ChainAndHost,
}

#[derive(Clone)]
pub(super) struct PgTls(MakeRustlsConnect);

impl fmt::Debug for PgTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PgTls")
    }
}

impl PgTls {
    pub(super) fn new(trust: CertificateCheck, root: Option<&Path>) -> Result<PgTls, String> {
        let builder = tls::client()?;
        if trust == CertificateCheck::Unverified {
            let verifier = Arc::new(LenientVerifier { chain: None, algorithms: algorithms() });
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
            return Ok(PgTls::with_config(builder.with_no_client_auth()));
        }
        let roots = tls::roots(root).map_err(|why| format!("sslrootcert: {why}"))?;
        if roots.is_empty() {
            return Err("no trusted certificates: name them with sslrootcert=/path/to/ca.pem".to_owned());
        }
        let config = match trust {
            CertificateCheck::ChainAndHost => builder.with_root_certificates(roots).with_no_client_auth(),
            _ => {
                let provider = Arc::new(default_provider());
                let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let chain = Some(chain.map_err(|error| error.to_string())?);
                let verifier = Arc::new(LenientVerifier { chain, algorithms: algorithms() });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
        };
        Ok(PgTls::with_config(config))
    }

    fn with_config(config: ClientConfig) -> PgTls {
        PgTls(MakeRustlsConnect::new(config))
    }

    pub(super) fn connector(&self) -> MakeRustlsConnect {
        self.0.clone()
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    default_provider().signature_verification_algorithms
}

/// Verifies the handshake signature, and the certificate chain if `chain` is set; never the host name.
#[derive(Debug)]
struct LenientVerifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is checked last: with this error everything else is valid.
        match chain.verify_server_cert(certificate, between, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
