//! nginx: files over HTTP and HTTPS, with ranges, conditions and ETags. Paths of the form
//! `/bucket/key` make it a read-only S3 store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::{Doing, Result};
use tempfile::TempDir;

use super::certificate::{Certificate, authority};
use super::service::{Service, free_port, missing};

/// Folder whose files are answered with 403.
const DENIED: &str = "denied";

/// A running nginx.
pub struct Nginx {
    http: SocketAddr,
    https: SocketAddr,
    folder: TempDir,
    _service: Service,
}

impl Nginx {
    /// Serves the files below `root`; those in its folder `denied` are answered with 403.
    ///
    /// # Errors
    /// If nginx or openssl is missing or does not start.
    pub fn start(root: &Path) -> Result<Self> {
        Self::with(root, Certificate::Good)
    }

    /// Serves the files below `root` with this certificate.
    ///
    /// # Errors
    /// If nginx or openssl is missing or does not start.
    pub fn with(root: &Path, certificate: Certificate) -> Result<Self> {
        Self::at(root, certificate, (free_port()?, free_port()?), None, "")
    }

    /// Serves the files below `root` and redirects paths that begin with `from` to `to`.
    ///
    /// # Errors
    /// If nginx or openssl is missing or does not start.
    pub fn leading(root: &Path, from: &str, to: &str) -> Result<Self> {
        // Matches the path as sent, with its escapes.
        let more = format!("if ($request_uri ~ ^{from}(.*)$) {{ return 302 {to}$1; }}");
        Self::at(root, Certificate::Good, (free_port()?, free_port()?), None, &more)
    }

    /// Serves the files below `root` in a network namespace, at an address that is not loopback.
    ///
    /// # Errors
    /// If nginx or openssl is missing or does not start.
    pub fn within(root: &Path, namespace: &str, address: SocketAddr) -> Result<Self> {
        let mut https = address;
        https.set_port(free_port()?.port());
        Self::at(root, Certificate::Good, (address, https), Some(namespace), "")
    }

    fn at(
        root: &Path,
        certificate: Certificate,
        (http, https): (SocketAddr, SocketAddr),
        namespace: Option<&str>,
        more: &str,
    ) -> Result<Self> {
        let folder = TempDir::new().doing("make a temp directory")?;
        certificate.make(folder.path())?;
        let place = folder.path().join("nginx.conf");
        std::fs::write(&place, configuration(root, folder.path(), http, https, more))
            .doing("write nginx's configuration")?;
        let program = Path::new("/usr/sbin/nginx");
        if !program.exists() {
            return Err(missing("nginx"));
        }
        let mut command = Command::new(if namespace.is_some() { "ip".as_ref() } else { program });
        if let Some(namespace) = namespace {
            command.args(["netns", "exec", namespace]).arg(program);
        }
        command.arg("-c").arg(&place).arg("-p").arg(folder.path());
        let mut service = Service::start("nginx", &command, &folder.path().join("log"))?;
        // The two sockets open one after the other.
        service.wait_for(http)?;
        service.wait_for(https)?;
        Ok(Self { http, https, folder, _service: service })
    }

    /// Address for HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.http
    }

    /// URL for HTTP, without a slash at the end.
    #[must_use]
    pub fn http(&self) -> String {
        format!("http://{}", self.http)
    }

    /// URL for HTTPS, without a slash at the end.
    #[must_use]
    pub fn https(&self) -> String {
        format!("https://{}", self.https)
    }

    /// Path of the server's own certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// Path of the certificate of the authority that signed its valid ones.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        authority(self.folder.path())
    }
}

/// Configuration of an nginx that writes only into `folder`.
fn configuration(
    root: &Path,
    folder: &Path,
    http: SocketAddr,
    https: SocketAddr,
    more: &str,
) -> String {
    let (root, folder) = (root.display(), folder.display());
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = paths.map(|name| format!("{name}_temp_path {folder}/{name};\n")).concat();
    // Files may belong to any user: as root the workers keep root's rights.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        "{user} daemon off; worker_processes 2; pid {folder}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; max_ranges 1; etag on;
{paths}server {{
listen {http}; listen {https} ssl;
ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem;
root {root};
location /{DENIED}/ {{ return 403; }}
{more}
}} }}
"
    )
}
