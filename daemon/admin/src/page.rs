//! The status page: what `forebay top` shows, for a browser.
//!
//! It is three files that are part of the program. It loads nothing from anywhere else,
//! and is told nothing that whoever looks at it may not ask: it asks as anybody does.

use axum::http::{HeaderName, header};

/// Content policy of the page: it may load files from this daemon and ask it, and nothing injected.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

type File = ([(HeaderName, &'static str); 4], &'static str);

fn file(kind: &'static str, text: &'static str) -> File {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The next release has another.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}

/// The status page.
#[utoipa::path(get, path = "/", tag = "state", responses((status = 200, body = String, content_type = "text/html")))]
pub(super) async fn page() -> File {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// The style sheet.
#[utoipa::path(get, path = "/page.css", tag = "state", responses((status = 200, body = String, content_type = "text/css")))]
pub(super) async fn style() -> File {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// The script.
#[utoipa::path(get, path = "/page.js", tag = "state", responses((status = 200, body = String, content_type = "text/javascript")))]
pub(super) async fn script() -> File {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}
