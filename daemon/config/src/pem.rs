//! Certificates and keys in PEM files, of the API and of connections between nodes.
//!
//! A key that other users could read is rejected.

use std::fmt;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_peers::{PeerPem, PeerTls, PeerTlsFiles};
use forebay_store::{SecretReaders, read_secret};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Maximum bytes of certificates or of a key: hundreds of the usual ones.
const MOST: u64 = 1 << 20;

/// Reads the certificates of a node of a cluster.
///
/// # Errors
/// `PermissionDenied` if others may read the key; `Invalid` for a file without certificates or
/// without a key, or for a key that does not match its certificate; the error of a file that cannot
/// be read.
pub fn read_peer_tls(files: &PeerTlsFiles) -> Result<PeerTls> {
    let pem = PeerPem {
        chain: certificates(&files.cert, "cert")?,
        key: private_key(&files.key, &files.cert)?,
        authorities: certificates(&files.ca, "ca")?,
    };
    PeerTls::new(files, pem)
}

/// Reads the private key of a certificate.
pub(crate) fn private_key(key: &Path, cert: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read_secret(key, "key", MOST, SecretReaders::Group)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| wrong_key(key, cert, &error))
}

/// Returns the error of a key that does not fit its certificate.
pub(crate) fn wrong_key(key: &Path, cert: &Path, why: &dyn fmt::Display) -> Error {
    let what = format!("the key does not match the certificate: {why}");
    let error = Error::new(ErrorKind::Invalid, what);
    let error = error.at("key", key.display()).at("cert", cert.display());
    error.advise("name the PEM file of the certificate's key, unencrypted")
}

/// Reads all certificates of a file, one at least.
pub(crate) fn certificates(path: &Path, key: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let at = |error: Error| error.at(key, path.display());
    let found = std::fs::metadata(path).doing("read a certificate").map_err(at)?;
    if !found.is_file() || found.len() > MOST {
        let what = "the file contains no certificates";
        return Err(at(Error::new(ErrorKind::Invalid, what).advise("name a PEM file")));
    }
    let bytes = std::fs::read(path).doing("read a certificate").map_err(at)?;
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(all) if !all.is_empty() => Ok(all),
        read => {
            let why =
                read.err().map_or_else(|| "it contains none".to_owned(), |why| why.to_string());
            let what = format!("invalid certificates: {why}");
            Err(at(Error::new(ErrorKind::Invalid, what).advise("name a PEM file")))
        }
    }
}
