//! The OpenAPI document: what is said of all routes alike.
//!
//! A route says what it takes and gives; that it may be refused, and what for, is added
//! here.

use forebay_error::{PROBLEM, Problem};
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, ResponseBuilder};

/// Name of the token's scheme.
const TOKEN: &str = "token";

/// Answers any route may give: an invalid, missing or denied request; and one that cannot be served
/// now.
const REFUSALS: [(&str, &str); 2] = [
    ("4XX", "The request is invalid, its object does not exist, or access is denied."),
    ("5XX", "The daemon cannot serve the request now."),
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay",
        description = "The admin API of a Forebay daemon, on its Unix socket, and over TCP if configured. Over TCP all routes except health, the overview and this document need the daemon's token.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem))
)]
pub(super) struct Described;

/// Adds to each operation of a document that it may be refused; `for_admins`: that it needs the
/// token.
pub(super) fn complete(document: &mut Document, for_admins: bool) {
    for path in document.paths.paths.values_mut() {
        for operation in operations(path) {
            for (status, says) in REFUSALS {
                let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem")));
                let refusal = ResponseBuilder::new().description(says);
                let refusal = refusal.content(PROBLEM, content.build()).build();
                let responses = &mut operation.responses.responses;
                responses.entry(status.to_owned()).or_insert_with(|| refusal.into());
            }
            if for_admins {
                operation.security = Some(vec![SecurityRequirement::new(TOKEN, [""; 0])]);
            }
        }
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    let bearer = bearer
        .description(Some(
            "The content of `token_file`; only over TCP, without an admin's certificate.",
        ))
        .build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer));
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, .. } = path;
    [get, put, post, delete].into_iter().flatten()
}
