//! The SDK's requests go over the same wire as all others.
//!
//! One HTTP client in this process, with its limits, its counters, its proxies and its
//! trust; the SDK brings none.

use aws_smithy_runtime_api::client::http::{
    HttpClient as SmithyClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http_body_util::{BodyExt, Limited};
use object_store::client::{HttpClient, HttpErrorKind};

/// The largest reply: the attributes of an object with a thousand parts, some 200 bytes each, and
/// room.
const REPLY_MAX: usize = 4 << 20;

/// The wire, as the SDK takes it.
#[derive(Debug, Clone)]
pub(super) struct Smithy(pub(super) HttpClient);

impl SmithyClient for Smithy {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Smithy {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move { exchange(&client, request).await })
    }
}

async fn exchange(
    client: &HttpClient,
    request: HttpRequest,
) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    // Nothing that is sent here has more of a body than fits memory.
    let request = request.map(|body| body.bytes().unwrap_or_default().to_vec().into());
    let response = client.execute(request).await.map_err(|error| match error.kind() {
        HttpErrorKind::Timeout => ConnectorError::timeout(error.into()),
        _ => ConnectorError::io(error.into()),
    })?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, REPLY_MAX).collect().await.map_err(ConnectorError::io)?;
    // `http`'s type, without naming the crate.
    let response = object_store::client::HttpResponse::from_parts(parts, Vec::new().into());
    let response = response.map(|_| SdkBody::from(body.to_bytes()));
    response.try_into().map_err(|error: aws_smithy_runtime_api::http::HttpError| {
        ConnectorError::other(error.into(), None)
    })
}
