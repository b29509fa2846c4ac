//! Certificates by which nodes know each other.
//!
//! A node's name is a DNS name in its certificate. An asker compares it with the member that it
//! dials, a server compares the asker's with its member list. Addresses prove nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Maximum bytes of certificates or of a key: hundreds of the usual ones.
const MAX_PEM: u64 = 1 << 20;

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

/// TLS of a node, in both directions. Cheap to clone.
#[derive(Clone)]
pub struct PeerTls {
    /// Configuration of the peer server.
    pub server: Arc<rustls::ServerConfig>,
    /// Configuration of requests to other nodes.
    pub client: Arc<rustls::ClientConfig>,
    /// Configuration of requests to nodes whose names are not known.
    pub any_name: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerTls")
    }
}

impl PeerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid` for a file without certificates or without a key, or for a key that does not match
    /// its certificate; the error of a file that cannot be read.
    pub fn read(files: &PeerTlsFiles) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain = certificates(&files.cert, "cert")?;
        let key = read(&files.key, "key")?;
        let wrong_key = |error: String| {
            let what = format!("the key does not match the node's certificate: {error}");
            let error = Error::new(ErrorKind::Invalid, what).at("key", files.key.display());
            error.advise("name the PEM file of the certificate's key, unencrypted")
        };
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| wrong_key(e.to_string()))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.ca, "ca")? {
            roots.add(authority).map_err(|error| invalid(&files.ca, "ca", &error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let client =
            client(&provider, &roots, &chain, &key).map_err(|e| wrong_key(e.to_string()))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier =
            verifier.build().map_err(|error| invalid(&files.ca, "ca", &error.to_string()))?;
        let mut any_name = client.clone();
        any_name.dangerous().set_certificate_verifier(Arc::new(AnyName(verifier)));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let verifier =
            verifier.build().map_err(|error| invalid(&files.ca, "ca", &error.to_string()))?;
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map(|builder| builder.with_client_cert_verifier(verifier))
            .and_then(|builder| builder.with_single_cert(chain, key));
        let mut server = server.map_err(|error| wrong_key(error.to_string()))?;
        server.alpn_protocols = vec![HTTP.to_vec()];
        // Each handshake checks the certificate anew: no session resumes an earlier check.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let [client, any_name] = [client, any_name].map(Arc::new);
        Ok(Self { server: Arc::new(server), client, any_name })
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

fn invalid(path: &Path, key: &'static str, why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("invalid certificates: {why}"))
        .at(key, path.display())
        .advise("name a PEM file")
}

/// Reads all certificates of a file, one at least.
fn certificates(path: &Path, key: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path, key)?;
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(invalid(path, key, "the file contains none")),
        Err(error) => Err(invalid(path, key, &error.to_string())),
    }
}

fn read(path: &Path, key: &'static str) -> Result<Vec<u8>> {
    let at = |error: Error| error.at(key, path.display());
    let found = std::fs::metadata(path).doing("read a node's certificate").map_err(at)?;
    if !found.is_file() || found.len() > MAX_PEM {
        return Err(invalid(path, key, "no file, or too large"));
    }
    std::fs::read(path).doing("read a node's certificate").map_err(at)
}
