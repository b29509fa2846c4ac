//! Certificates of the authorities that this system trusts.
//!
//! Rule: it looks where the TLS library looks, by the same crate, so that both find the same.

use std::env;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};
use rustls::RootCertStore;

/// Variables that name certificates in place of the system's.
const VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Returns the number of authorities that may sign the certificates of stores, beside those that a
/// rule or `AWS_CA_BUNDLE` names.
///
/// # Errors
/// `Invalid` if there are none: no store is reached by https then.
pub fn system_authorities() -> Result<usize> {
    let found = rustls_native_certs::load_native_certs();
    let (usable, _) = RootCertStore::empty().add_parsable_certificates(found.certs);
    if usable > 0 {
        return Ok(usable);
    }
    let what = "this system has no certificates of authorities, which https needs";
    let error = Error::new(ErrorKind::Invalid, what).at("check", "authorities");
    let named = VARIABLES.map(|name| Some((name, env::var_os(name)?)));
    let is_named = named.iter().any(Option::is_some);
    let error = named.into_iter().flatten().fold(error, |error, (name, value)| {
        error.at(&name.to_ascii_lowercase(), Path::new(&value).display())
    });
    // The first of them says why nothing was found.
    let error = found.errors.first().into_iter().fold(error, |error, why| error.at("cause", why));
    Err(error.advise(match is_named {
        true => {
            "let SSL_CERT_FILE name a PEM file of authorities, such as \
             /etc/ssl/certs/ca-certificates.crt, and restart the daemon"
        }
        false => {
            "`apt-get install ca-certificates` (`dnf install ca-certificates`), or set \
             SSL_CERT_FILE to a PEM file of authorities; then restart the daemon"
        }
    }))
}
