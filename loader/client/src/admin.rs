//! Client of the admin API: HTTP and JSON, over the socket that trainers use.
//!
//! Each request is a connection of its own, so that none is found closed by the other side. A
//! greeted connection stays open beside them: it identifies the daemon, and keeps it alive.

use bytes::Bytes;
use forebay_error::{Doing, Error, ErrorKind, Problem, Result};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::connection::{Connection, dial, silent};
use crate::deadline::Deadline;

/// Bytes of an answer: what becomes of a million shards.
const ANSWER_MAX: usize = 256 << 20;

/// Bytes of a line: a thousand errors with their places, many times over.
const LINE_MAX: usize = 16 << 20;

/// A Unix socket has no host name, and HTTP needs one.
const NOBODYS_NAME: &str = "localhost";

/// A daemon, for admins.
#[derive(Debug)]
pub struct Admin {
    connection: Connection,
    runtime: Runtime,
}

/// A step of work that is told line by line.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line<T> {
    Told(T),
    Failed(Problem),
}

impl Admin {
    /// Creates the client of the daemon behind a connection.
    pub fn of(connection: Connection) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { connection, runtime: runtime.doing("start an async runtime")? })
    }

    /// Returns the document at `path`, as in `/api/v1/status`.
    pub fn get<T: DeserializeOwned>(&self, path: &str, deadline: &Deadline) -> Result<T> {
        self.ask(Method::GET, path, None::<&()>, deadline)
    }

    /// Returns the text at `path`, as in `/metrics`.
    pub fn text(&self, path: &str, deadline: &Deadline) -> Result<String> {
        let answer = self.answer(Method::GET, path, None::<&()>, deadline)?;
        String::from_utf8(answer.into()).map_err(|error| unreadable(&error.to_string()))
    }

    /// Sends DELETE to `path`, and returns the answer.
    pub fn delete<T: DeserializeOwned>(&self, path: &str, deadline: &Deadline) -> Result<T> {
        self.ask(Method::DELETE, path, None::<&()>, deadline)
    }

    /// Puts `body` to `path`, and returns the answer.
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: &Deadline,
    ) -> Result<T> {
        self.ask(Method::PUT, path, Some(body), deadline)
    }

    /// Posts `body` to `path`, and returns the answer.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: &Deadline,
    ) -> Result<T> {
        self.ask(Method::POST, path, Some(body), deadline)
    }

    /// Has work begun by `body`, posted to `path`, and hands each step of it to `each`, to its end.
    /// It ends with this call, however that comes.
    ///
    /// # Errors
    /// As [`Admin::get`], and what `each` fails with.
    pub fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        mut each: impl FnMut(T) -> Result<()>,
        deadline: &Deadline,
    ) -> Result<()> {
        self.runtime.block_on(async {
            let begun = self.send(Method::POST, path, Some(body), deadline).await?;
            let mut body = begun.into_body();
            let mut rest = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.at(gone(&error)))?;
                let Ok(bytes) = frame.into_data() else { continue };
                rest.extend_from_slice(&bytes);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    match parse(&line)? {
                        Line::Told(told) => each(told)?,
                        Line::Failed(problem) => return Err(problem.into_error()),
                    }
                }
                if rest.len() > LINE_MAX {
                    return Err(unreadable("a line without an end"));
                }
            }
            Ok(())
        })
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        deadline: &Deadline,
    ) -> Result<T> {
        parse(&self.answer(method, path, body, deadline)?)
    }

    fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        deadline: &Deadline,
    ) -> Result<Bytes> {
        self.runtime.block_on(async {
            let answered = async {
                let answer = self.send(method, path, body, deadline).await?;
                self.whole(answer).await
            };
            tokio::time::timeout(deadline.left(), answered).await.map_err(|_| self.at(silent()))?
        })
    }

    /// The head of a good answer; any other is an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        deadline: &Deadline,
    ) -> Result<Response<Incoming>> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("failed to write a request: {error}"))
            })?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, NOBODYS_NAME)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("invalid path: {error}")))?;
        let socket = dial(self.connection.path(), deadline)?.map_err(|nobody| self.at(nobody))?;
        let socket = UnixStream::from_std(socket).doing("use a socket")?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| self.at(gone(&error)))?;
        // It ends with the answer, or with whoever reads it.
        tokio::spawn(connection);
        let sent = tokio::time::timeout(deadline.left(), sender.send_request(request)).await;
        let answer = sent.map_err(|_| self.at(silent()))?.map_err(|error| self.at(gone(&error)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let said = self.whole(answer).await?;
        match serde_json::from_slice::<Problem>(&said) {
            Ok(problem) => Err(problem.into_error()),
            Err(_) => Err(self.at(unreadable(status.as_str()))),
        }
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes> {
        match Limited::new(answer.into_body(), ANSWER_MAX).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(self.at(unreadable("more than the limit")))
            }
            Err(error) => Err(self.at(gone(&*error))),
        }
    }

    fn at(&self, error: Error) -> Error {
        error.at("socket", self.connection.path().display()).at("pid", self.connection.daemon_pid)
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| unreadable(&error.to_string()))
}

fn unreadable(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the daemon's answer cannot be read: {why}"))
        .advise("install the same release on both sides")
}

fn gone(error: &dyn std::error::Error) -> Error {
    Error::new(ErrorKind::Closed, format!("the daemon disconnected: {error}"))
}
