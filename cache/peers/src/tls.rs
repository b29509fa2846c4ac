//! Certificates by which nodes know each other.
//!
//! A node's name is a DNS name in its certificate. An asker compares it with the member that it
//! dials, a server compares the asker's with its member list. Addresses prove nothing.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::certificate::CertificateReport;

/// Protocol inside TLS.
const HTTP: &[u8] = b"http/1.1";

/// Paths of a node's certificate, its key, and the authority of all nodes, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// Certificate of this node, and those that lead to the authority.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Authority that signs the certificates of all nodes.
    pub ca: PathBuf,
}

/// Contents of these files.
pub struct PeerPem {
    /// Certificate of this node first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Private key.
    pub key: PrivateKeyDer<'static>,
    /// Authorities.
    pub authorities: Vec<CertificateDer<'static>>,
}

/// TLS of a node, in both directions. Cheap to clone.
#[derive(Clone)]
pub struct PeerTls {
    /// Configuration of the peer server.
    pub server: Arc<rustls::ServerConfig>,
    /// Configuration of requests to other nodes.
    pub client: Arc<rustls::ClientConfig>,
    /// Configuration of requests to nodes whose names are not known.
    pub any_name: Arc<rustls::ClientConfig>,
    /// The node's own certificate.
    pub certificate: CertificateReport,
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerTls")
    }
}

impl PeerTls {
    /// Makes the TLS of a node from the contents of its files; `files` names them in errors.
    ///
    /// # Errors
    /// `Invalid` for an authority that is none, or a key that does not match its certificate.
    pub fn new(files: &PeerTlsFiles, pem: PeerPem) -> Result<Self> {
        let PeerPem { chain, key, authorities } = pem;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let wrong_key = |error: &dyn std::fmt::Display| {
            let what = format!("the key does not match the node's certificate: {error}");
            let error = Error::new(ErrorKind::Invalid, what).at("key", files.key.display());
            error.advise("name the PEM file of the certificate's key, unencrypted")
        };
        let wrong_ca = |error: &dyn std::fmt::Display| {
            let what = format!("invalid authority of the nodes' certificates: {error}");
            let error = Error::new(ErrorKind::Invalid, what).at("ca", files.ca.display());
            error.advise("name a PEM file of the authority that signs all nodes' certificates")
        };
        let certificate = chain.first().map(CertificateReport::of).unwrap_or_default();
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| wrong_ca(&error))?;
        }
        let roots = Arc::new(roots);
        let client = client(&provider, &roots, &chain, &key).map_err(|error| wrong_key(&error))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier = verifier.build().map_err(|error| wrong_ca(&error))?;
        let mut any_name = client.clone();
        any_name.dangerous().set_certificate_verifier(Arc::new(AnyName(verifier)));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let verifier = verifier.build().map_err(|error| wrong_ca(&error))?;
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map(|builder| builder.with_client_cert_verifier(verifier))
            .and_then(|builder| builder.with_single_cert(chain, key));
        let mut server = server.map_err(|error| wrong_key(&error))?;
        server.alpn_protocols = vec![HTTP.to_vec()];
        // Each handshake checks the certificate anew: no session resumes an earlier check.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let [client, any_name] = [client, any_name].map(Arc::new);
        Ok(Self { server: Arc::new(server), client, any_name, certificate })
    }
}

/// Check of a certificate without a name to expect: it must be valid for the name that it states.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let unnamed = || rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|_| unnamed())?;
        let own = parsed.valid_dns_names().next().ok_or_else(unnamed)?;
        let own = ServerName::try_from(own).map_err(|_| unnamed())?;
        self.0.verify_server_cert(certificate, intermediates, &own, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> std::result::Result<rustls::ClientConfig, rustls::Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots.clone());
    let mut client = builder.with_client_auth_cert(chain.to_vec(), key.clone_key())?;
    client.alpn_protocols = vec![HTTP.to_vec()];
    client.resumption = rustls::client::Resumption::disabled();
    Ok(client)
}
