//! Azurite: Microsoft's emulator of Azure blob storage.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forebay_error::{Doing, Error, ErrorKind, Result};
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::StdError;
use sha2::Sha256;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::service::{Service, free_port, tool};

/// Protocol version of requests.
const VERSION: &str = "2021-08-06";

/// Characters that are escaped in a blob's path.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A running Azurite.
pub struct Azurite {
    address: SocketAddr,
    _folder: TempDir,
    service: Mutex<Option<Service>>,
}

impl Azurite {
    /// Account that every emulator has.
    pub const ACCOUNT: &str = "devstoreaccount1";
    /// Public key of that account.
    pub const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    /// Starts a server without containers.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let folder = TempDir::new().doing("make a temp directory")?;
        let address = free_port()?;
        let mut command = Command::new("node");
        command.arg(tool("azurite/node_modules/azurite/dist/src/blob/main.js")?);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &address.port().to_string()]);
        command.args(["--skipApiVersionCheck", "--disableTelemetry", "--location"]);
        command.arg(folder.path());
        let mut service = Service::start("azurite", &command, &folder.path().join("log"))?;
        service.wait_for(address)?;
        Ok(Self { address, _folder: folder, service: Mutex::new(Some(service)) })
    }

    /// Address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it for every holder.
    pub fn stop(&self) {
        drop(self.service.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Makes a container, or puts a blob into one, for `path` of the form `container` or
    /// `container/blob`.
    ///
    /// # Errors
    /// If the server rejects it.
    pub fn put(&self, path: &str, bytes: Option<&[u8]>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing("start a runtime")?;
        let status = runtime.block_on(self.send(path, bytes)).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("azurite does not answer: {error}"))
        })?;
        if status == StatusCode::CREATED {
            return Ok(());
        }
        let what = format!("azurite refuses a test's request: {status}");
        Err(Error::new(ErrorKind::Unavailable, what).at("path", path))
    }

    async fn send(&self, path: &str, bytes: Option<&[u8]>) -> Result<StatusCode, StdError> {
        let path = format!("/{}/{}", Self::ACCOUNT, utf8_percent_encode(path, PATH));
        let (query, body) = match bytes {
            None => ("?restype=container", Bytes::new()),
            Some(bytes) => ("", Bytes::copy_from_slice(bytes)),
        };
        let mut request = Request::put(format!("{path}{query}"))
            .header(HOST, self.address.to_string())
            .header("x-ms-date", httpdate::fmt_http_date(SystemTime::now()))
            .header("x-ms-version", VERSION);
        if let Some(bytes) = bytes {
            // Set for an empty blob too, for which the client would send none.
            request = request.header(CONTENT_LENGTH, bytes.len());
            request = request.header("x-ms-blob-type", "BlockBlob");
        }
        let mut request = request.body(Full::new(body))?;
        let signature = self.signature(&request, bytes.is_none());
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(&signature)?);
        let socket = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender.send_request(request).await?.status())
    }

    /// Signature by the shared key, as in Azure's documentation.
    fn signature(&self, request: &Request<Full<Bytes>>, is_container: bool) -> String {
        let own = request.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-ms-"));
        let mut own: Vec<_> = own
            .map(|(name, value)| format!("{name}:{}\n", value.to_str().unwrap_or_default()))
            .collect();
        own.sort();
        let length = match request.body().size_hint().exact() {
            None | Some(0) => String::new(),
            Some(length) => length.to_string(),
        };
        // Encoding and language come before the length; digest, type, date, conditions and range
        // after it.
        let text = format!(
            "PUT\n\n\n{length}\n\n\n\n\n\n\n\n\n{}/{}{}{}",
            own.concat(),
            Self::ACCOUNT,
            request.uri().path(),
            if is_container { "\nrestype:container" } else { "" },
        );
        let key = STANDARD.decode(Self::KEY).expect("the key is well known");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length is a key's");
        mac.update(text.as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        format!("SharedKey {}:{signature}", Self::ACCOUNT)
    }
}
