//! TLS for the API over TCP, and certificates by which admins are known.
//!
//! A certificate makes an admin only if an authority signed it that the administrator
//! named for that; who shows one of another's is not let in, who shows none is anybody.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::pem;

/// Time for a handshake: a few round trips around the world, and a busy client.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Protocol inside TLS.
const HTTP: &[u8] = b"http/1.1";

/// Paths of the daemon's certificate, its key and the admins' authority, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate, and those that lead to an authority.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Authority that signs admins' certificates; without it no certificate makes an admin.
    pub client_ca: Option<PathBuf>,
}

/// TLS of the daemon. Cheap to clone.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// An admin's certificate, by its SHA-256: what `openssl x509 -fingerprint -sha256` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint(Arc<str>);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Self {
        let pairs = Sha256::digest(certificate)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect::<Vec<_>>();
        Self(pairs.join(":").into())
    }

    /// The fingerprint as OpenSSL prints it.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.0
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `PermissionDenied` if others may read the key; `Invalid` for what is no certificate, no key,
    /// or not the key of the certificate.
    pub fn read(files: &TlsFiles) -> Result<Self> {
        let TlsFiles { cert, key, client_ca } = files;
        let chain = pem::certificates(cert, "cert")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let wrong_key = |error: &dyn fmt::Display| pem::wrong_key(key, cert, error);
        let private = pem::private_key(key, cert)?;
        let verifier = match client_ca {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(path) => {
                let at = |error: &dyn fmt::Display| {
                    let what = format!("invalid authority for admins' certificates: {error}");
                    let error =
                        Error::new(ErrorKind::Invalid, what).at("client_ca", path.display());
                    error
                        .advise("name a PEM file of the authorities that sign admins' certificates")
                };
                let mut roots = RootCertStore::empty();
                for authority in pem::certificates(path, "client_ca")? {
                    roots.add(authority).map_err(|error| at(&error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
                // A client without a certificate may present the token.
                verifier.allow_unauthenticated().build().map_err(|error| at(&error))?
            }
        };
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().map_err(std::io::Error::other);
        let config = config.doing("set TLS up")?.with_client_cert_verifier(verifier);
        let mut config =
            config.with_single_cert(chain, private).map_err(|error| wrong_key(&error))?;
        config.alpn_protocols = vec![HTTP.to_vec()];
        // Each handshake checks the certificate anew: no session resumes an earlier check.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config).into()))
    }

    /// The connection inside of another, and whose it is, where an admin's certificate says so.
    ///
    /// # Errors
    /// `PermissionDenied` for a certificate that makes no admin; `Unavailable` for whoever speaks
    /// no TLS, or too slowly.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, Option<Fingerprint>)> {
        let shaken = tokio::time::timeout(HANDSHAKE_WITHIN, self.0.accept(stream)).await;
        let late = |_| Error::new(ErrorKind::Unavailable, "a handshake took too long");
        let stream = shaken.map_err(late)?.map_err(|error| judged(&error))?;
        // It was verified, or there would be none.
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let who = shown.map(Fingerprint::of);
        Ok((stream, who))
    }
}

/// Returns the cause of a failed handshake.
fn judged(error: &std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            let what = format!("the client's certificate was rejected: {why}");
            Error::new(ErrorKind::PermissionDenied, what)
                .advise("present a valid client certificate signed by an authority of `client_ca`")
        }
        _ => Error::new(ErrorKind::Unavailable, format!("the TLS handshake failed: {error}")),
    }
}
