//! Content of a data set on the Hub, as its API lists it: page after page, by the `Link` of each.
//!
//! A page is requested only from the Hub itself, and its size is bounded.

use forebay_error::{Error, ErrorKind, Result};
use futures::StreamExt;
use object_store::client::{HttpRequest, HttpRequestBody, HttpResponse};
use serde::Deserialize;
use url::Url;

use super::super::attempts::Failed;
use super::super::link::Target;
use super::super::wire::noting;
use super::{Hub, Named, Store};
use crate::listing::{Found, Listing, Wanted};

/// Bytes of a page, at most: the Hub sends a thousand entries, of half a kilobyte each.
const PAGE_BYTES: usize = 16 << 20;

/// An entry of a page; what else is said of it is of no use here.
#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
}

/// A page, and where the next one is.
type Page = (Vec<Entry>, Option<String>);

impl Hub {
    /// As [`crate::Source::list`].
    pub(super) async fn matching(&self, pattern: &str) -> Result<Listing> {
        let at = |error: Error| error.at("urls", pattern);
        let named = Named::of(pattern)?;
        let wanted = Wanted::new(named.path).map_err(at)?;
        let folder = wanted.prefix().rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut first = self.base.clone();
        first
            .path_segments_mut()
            .map_err(|()| super::invalid("HF_ENDPOINT is invalid"))?
            .pop_if_empty()
            .extend(["api", "datasets", named.org, named.name, "tree", &named.revision()])
            .extend(folder.split('/').filter(|name| !name.is_empty()));
        first.query_pairs_mut().append_pair("recursive", bool_word(!wanted.is_flat()));
        let (mut found, mut next) = (Found::default(), Some(first.to_string()));
        while let Some(page) = next {
            let (entries, link) = self.page(&page, pattern).await?;
            let files = entries.into_iter().filter(|entry| entry.r#type == "file");
            let token = self.same_server(link)?;
            next = found.page(&wanted, files.map(|file| file.path), token).map_err(at)?;
        }
        let root = &pattern[..pattern.len() - named.path.len()];
        Ok(found.listing(root))
    }

    async fn page(&self, page: &str, pattern: &str) -> Result<Page> {
        let route = self.http.route();
        let read = async || {
            let (read, noted) = noting(self.read(page)).await;
            read.map_err(|refusal| match refusal {
                Refused::By(error) => route.refusals.explain(&error, pattern, &noted, 0),
                Refused::Here(error) => Failed::for_good(error.at("urls", pattern)),
            })
        };
        route.asked(None, Target { folder: page, url: pattern }, read).await
    }

    async fn read(&self, page: &str) -> Result<Page, Refused> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        let uri = page.parse();
        *request.uri_mut() =
            uri.map_err(|_| Refused::here("the Hub's next page has no address"))?;
        let response = self.http.client().execute(request).await.map_err(Refused::by)?;
        let status = response.status().as_u16();
        if status != 200 {
            // As object_store words it, which `Refusals` reads.
            return Err(Refused::by(std::io::Error::other(format!("status code: {status}"))));
        }
        let next = next_of(&response);
        let (mut body, mut text) = (response.into_body().bytes_stream(), Vec::new());
        while let Some(chunk) = body.next().await {
            text.extend_from_slice(&chunk.map_err(Refused::by)?);
            if text.len() > PAGE_BYTES {
                return Err(Refused::here("a page of the Hub's listing is too large"));
            }
        }
        let entries = serde_json::from_slice(&text);
        Ok((entries.map_err(|_| Refused::here("the Hub's listing cannot be read"))?, next))
    }

    /// The next page's address, if it lies where the token may go.
    fn same_server(&self, next: Option<String>) -> Result<Option<String>> {
        let Some(next) = next else { return Ok(None) };
        match Url::parse(&next) {
            Ok(url) if url.origin() == self.base.origin() => Ok(Some(next)),
            _ => {
                let what = "the Hub's listing continues at another server";
                Err(Error::new(ErrorKind::Unavailable, what).at("endpoint", &self.base))
            }
        }
    }
}

/// Reason there is no page.
enum Refused {
    /// An error of the Hub, or of the network.
    By(object_store::Error),
    /// An invalid answer.
    Here(Error),
}

impl Refused {
    fn by(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::By(object_store::Error::Generic { store: "Hub", source: Box::new(error) })
    }

    fn here(what: &str) -> Self {
        Self::Here(Error::new(ErrorKind::Unavailable, what))
    }
}

fn bool_word(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// The `next` of a reply's `Link`: `<https://…>; rel="next"`.
fn next_of(response: &HttpResponse) -> Option<String> {
    let links = response.headers().get("link")?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    rest.split_once('>').map(|(url, _)| url.to_owned())
}
