//! A folder as an HTTP server on loopback: the demonstration's object store.
//!
//! Plain HTTP, since an S3 server would make the wheel larger by megabytes that nothing else needs.

use std::net::Ipv4Addr;
use std::path::Path;

use axum::Router;
use forebay_error::{Doing, Result};
use tokio::net::TcpListener;
use tower_http::services::ServeDir;

/// Serves `folder` for as long as the runtime lives; returns the server's URL.
///
/// # Errors
/// `Unavailable` if no port of loopback can be listened on.
pub(super) async fn serve(folder: &Path) -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.doing("listen on loopback")?;
    let address = listener.local_addr().doing("ask for the server's port")?;
    let service = Router::new().fallback_service(ServeDir::new(folder));
    // It ends with the runtime; without it the loader says that nobody answers.
    drop(tokio::spawn(async move { axum::serve(listener, service).await }));
    Ok(format!("http://{address}"))
}
