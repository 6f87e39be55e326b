//! The address of a server, and the connector for its scheme.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};

use crate::client::ClientError;

/// `http://HOST[:PORT][/PATH]` or `https://…`, without a final slash.
#[derive(Clone, Debug)]
pub struct BaseUrl {
    text: String,
    is_https: bool,
    is_loopback: bool,
}

impl BaseUrl {
    pub fn parse(text: &str) -> Result<BaseUrl, ClientError> {
        let bad = |why: &str| ClientError::Address { url: text.to_owned(), why: why.to_owned() };
        let uri: Uri = text.parse().map_err(|_| bad("not a valid URL"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(bad("the scheme is neither http nor https")),
            None => return Err(bad("the scheme is missing")),
        };
        let authority = uri.authority().ok_or_else(|| bad("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it has credentials, which are not sent; set TOLLGATE_TOKEN"));
        }
        if uri.query().is_some() {
            return Err(bad("it has a query"));
        }
        let is_loopback = is_loopback(authority.host());
        Ok(BaseUrl { text: text.trim_end_matches('/').to_owned(), is_https, is_loopback })
    }

    /// Whether nothing that is sent to it can be read on the way.
    pub fn is_confidential(&self) -> bool {
        self.is_https || self.is_loopback
    }

    /// The address of `path`, which begins with a slash.
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    /// Certificates are verified with those that the system trusts, or that `SSL_CERT_FILE` names; they are read only
    /// for `https`.
    pub(super) fn connector(&self, timeout: Duration) -> Result<HttpsConnector<HttpConnector>, ClientError> {
        let roots = if self.is_https { system_roots()? } else { RootCertStore::empty() };
        Ok(connector(roots, timeout))
    }
}

/// A connector that verifies certificates by these roots.
pub fn connector(roots: RootCertStore, timeout: Duration) -> HttpsConnector<HttpConnector> {
    let mut http = HttpConnector::new();
    http.set_connect_timeout(Some(timeout));
    http.set_nodelay(true);
    http.enforce_http(false);
    let provider = rustls::crypto::ring::default_provider();
    let tls = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http)
}

/// A name other than `localhost` may be resolved to any address.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub fn system_roots() -> Result<RootCertStore, ClientError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match (roots.is_empty(), found.errors.first()) {
        (false, _) => Ok(roots),
        (true, Some(error)) => Err(ClientError::Roots { why: error.to_string() }),
        (true, None) => Err(ClientError::Roots { why: "the system has none".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_address_precedes_that_of_a_call() {
        for (base, expected) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070/v1/bans"),
            ("http://127.0.0.1:7070/", "http://127.0.0.1:7070/v1/bans"),
            ("https://[::1]/ops/tollgate/", "https://[::1]/ops/tollgate/v1/bans"),
        ] {
            assert_eq!(BaseUrl::parse(base).expect(base).join("/v1/bans"), expected);
        }
    }

    #[test]
    fn what_is_not_an_address_is_rejected_with_the_reason() {
        for (base, why) in [
            ("127.0.0.1:7070", "scheme is missing"),
            ("ftp://host", "neither http nor https"),
            ("http://", "not a valid URL"),
            ("http://ann:secret@host", "TOLLGATE_TOKEN"),
            ("http://host?x=1", "query"),
        ] {
            let error = BaseUrl::parse(base).expect_err(base).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
