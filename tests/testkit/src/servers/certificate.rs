//! Certificates, valid and invalid, made by `openssl`.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::{Doing, Result};

use super::service::run;

/// A server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by [`Nginx::authority`](super::Nginx::authority), for 127.0.0.1 and localhost.
    Good,
    /// Signed like [`Good`](Self::Good), for another name.
    WrongName,
    /// Signed like [`Good`](Self::Good), expired yesterday.
    Expired,
    /// Self-signed.
    SelfSigned,
    /// Self-signed, and an authority's: as `openssl req -x509` makes them by itself.
    AuthoritysOwn,
}

/// Options of keys that every client supports and that are fast to generate.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// Path of the authority's certificate in a folder of [`Certificate::make`].
pub(super) fn authority(folder: &Path) -> PathBuf {
    folder.join("authority.pem")
}

impl Certificate {
    /// Makes `certificate.pem` and `key.pem` in `folder`, and the authority that signs good ones,
    /// `authority.pem`.
    ///
    /// # Errors
    /// If there is no `openssl`, or it fails.
    pub fn make(self, folder: &Path) -> Result<()> {
        let openssl = || {
            let mut command = Command::new("openssl");
            command.current_dir(folder);
            command
        };
        let ca = ["-x509", "-subj", "/CN=forebay test authority", "-days", "2"];
        let files = ["-keyout", "authority.key", "-out", "authority.pem"];
        run(openssl().arg("req").args(ca).args(KEY).args(files))?;
        let name = match self {
            Self::WrongName => "DNS:elsewhere.invalid",
            _ => "IP:127.0.0.1,DNS:localhost",
        };
        let is_authority = if self == Self::AuthoritysOwn { "TRUE" } else { "FALSE" };
        let extensions = format!("subjectAltName={name}\nbasicConstraints=CA:{is_authority}\n");
        std::fs::write(folder.join("extensions"), extensions).doing("write a certificate")?;
        let request = ["-subj", "/CN=forebay test", "-keyout", "key.pem", "-out", "request.pem"];
        run(openssl().args(["req", "-new"]).args(KEY).args(request))?;
        let days = if self == Self::Expired { "-1" } else { "2" };
        let signer: &[&str] = match self {
            Self::SelfSigned | Self::AuthoritysOwn => &["-signkey", "key.pem"],
            _ => &["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial"],
        };
        let files = ["-in", "request.pem", "-out", "certificate.pem", "-extfile", "extensions"];
        run(openssl().args(["x509", "-req", "-days", days]).args(signer).args(files))
    }
}
