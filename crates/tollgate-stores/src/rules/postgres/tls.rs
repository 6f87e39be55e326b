//! TLS to the servers, by rustls.
//!
//! The login is not bound to the TLS session (SCRAM without `-PLUS`): only the certificate protects against
//! impersonation, so only `verify-full` is safe where another host can answer in the server's place.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, WebPkiSupportedAlgorithms, ring::default_provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client};

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

#[derive(Clone, Debug)]
pub(super) struct PgTls(Arc<ClientConfig>);

impl PgTls {
    pub(super) fn new(trust: CertificateCheck, root: Option<&Path>) -> Result<PgTls, String> {
        let builder = tls::client()?;
        if trust == CertificateCheck::Unverified {
            let verifier = Arc::new(LenientVerifier { chain: None, algorithms: algorithms() });
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
            return Ok(PgTls(Arc::new(builder.with_no_client_auth())));
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
        Ok(PgTls(Arc::new(config)))
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

impl MakeTlsConnect<Socket> for PgTls {
    type Stream = PgTlsStream;
    type TlsConnect = PgTlsHandshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<PgTlsHandshake> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(PgTlsHandshake { connector: TlsConnector::from(Arc::clone(&self.0)), name })
    }
}

/// The TLS handshake of one connection.
pub(super) struct PgTlsHandshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for PgTlsHandshake {
    type Stream = PgTlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PgTlsStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, socket).await.map(PgTlsStream) })
    }
}

pub(super) struct PgTlsStream(client::TlsStream<Socket>);

impl TlsStream for PgTlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PgTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PgTlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
