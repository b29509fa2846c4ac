//! Connections over TCP: bounded in number, and shared between peers.
//!
//! Rule: a connection that waits for a request, or for a handshake, yields to a new one when all
//! are taken. The peer that has most of them loses its oldest, so slow or idle connections delay
//! nobody, least of all a health check.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, Id, JoinSet};

/// Connections at once: some scrapers, some people, and room for those that hang.
const CONNECTIONS: usize = 64;

/// Open connections of a port.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, Connection>,
    /// Notified when a connection begins to wait.
    waits: Arc<Notify>,
}

struct Connection {
    peer: IpAddr,
    activity: Activity,
    task: AbortHandle,
}

impl Connections {
    /// Waits until one more connection may be accepted. Cancel-safe.
    pub(super) async fn room(&mut self) {
        loop {
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.forget(ended);
            }
            if self.open.len() < CONNECTIONS || self.oldest_waiting().is_some() {
                return;
            }
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.forget(ended),
                () = self.waits.notified() => {}
            }
        }
    }

    /// Waits until a connection ends, if one is open.
    pub(super) async fn ended(&mut self) {
        if let Some(ended) = self.tasks.join_next_with_id().await {
            self.forget(ended);
        }
    }

    /// Adds a connection that `serve` serves to its end. One that waits is closed if all are taken.
    pub(super) fn add<F>(&mut self, peer: IpAddr, serve: impl FnOnce(Activity) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.open.len() >= CONNECTIONS
            && let Some(oldest) = self.oldest_waiting().and_then(|id| self.open.remove(&id))
        {
            tracing::debug!(peer = %oldest.peer, "closed a waiting HTTP connection for a new one");
            oldest.task.abort();
        }
        let activity = Activity {
            waits_since: Arc::new(Mutex::new(Some(Instant::now()))),
            waits: self.waits.clone(),
        };
        let task = self.tasks.spawn(serve(activity.clone()));
        self.open.insert(task.id(), Connection { peer, activity, task });
    }

    fn forget<T>(&mut self, ended: Result<(Id, T), tokio::task::JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, _)| id);
        self.open.remove(&id);
    }

    /// Returns the longest waiting connection of the peer that has most connections.
    fn oldest_waiting(&self) -> Option<Id> {
        let mut by_peer = HashMap::<IpAddr, usize>::new();
        for connection in self.open.values() {
            *by_peer.entry(connection.peer).or_default() += 1;
        }
        let waiting = self.open.iter().filter_map(|(id, connection)| {
            let since = (*connection.activity.waits_since())?;
            Some((by_peer[&connection.peer], std::cmp::Reverse(since), *id))
        });
        waiting.max_by_key(|(count, since, _)| (*count, *since)).map(|(_, _, id)| id)
    }
}

/// Activity of one connection: it waits, or a request is being answered.
#[derive(Clone)]
pub(super) struct Activity {
    waits_since: Arc<Mutex<Option<Instant>>>,
    waits: Arc<Notify>,
}

impl Activity {
    fn waits_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.waits_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request. The connection waits again once the last byte of the answer is taken.
    pub(super) async fn answer(self, request: Request, next: Next) -> Response {
        *self.waits_since() = None;
        let answering = Answering(self);
        let response = next.run(request).await;
        response.map(|body| Body::new(Answer { body, _answering: answering }))
    }
}

struct Answering(Activity);

impl Drop for Answering {
    fn drop(&mut self) {
        *self.0.waits_since() = Some(Instant::now());
        self.0.waits.notify_one();
    }
}

/// Body of an answer, which ends the answering when dropped.
struct Answer {
    body: Body,
    _answering: Answering,
}

impl HttpBody for Answer {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
