//! Signatures in the queries of URLs: links that anybody may use until they run out.
//!
//! A link is an object's URL and a signature for one method. The object is known without it, so
//! that one object has one identity and no signature reaches a disk.

use std::borrow::Cow;

/// Parameters of signed links, in lower case: Amazon's (V4 and V2), Google's, Microsoft's and
/// CloudFront's.
const PARAMETERS: [&str; 25] = [
    "awsaccesskeyid",
    "expires",
    "googleaccessid",
    "key-pair-id",
    "policy",
    "se",
    "sig",
    "signature",
    "sip",
    "ske",
    "skoid",
    "sks",
    "skt",
    "sktid",
    "skv",
    "sp",
    "spr",
    "sr",
    "st",
    "sv",
    "x-amz-security-token",
    "x-id",
    "sdd",
    "saoid",
    "suoid",
];

/// Beginnings of further ones.
const PREFIXES: [&str; 2] = ["x-amz-", "x-goog-"];

/// Parameters that hold the signature itself.
const SIGNATURES: [&str; 4] = ["sig", "signature", "x-amz-signature", "x-goog-signature"];

/// Returns true if `url` is a link that a signature permits.
pub(crate) fn is_signed(url: &str) -> bool {
    let Some((_, query)) = web_query(url) else { return false };
    query.split('&').any(|pair| SIGNATURES.contains(&name_of(pair).as_str()))
}

/// Returns the URL of the object behind a signed link; any other URL as it is.
#[must_use]
pub fn object_of(url: &str) -> Cow<'_, str> {
    let Some((plain, query)) = web_query(url).filter(|_| is_signed(url)) else {
        return Cow::Borrowed(url);
    };
    let is_kept = |pair: &&str| {
        let name = name_of(pair);
        !PARAMETERS.contains(&name.as_str())
            && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let kept: Vec<_> = query.split('&').filter(is_kept).collect();
    match kept.is_empty() {
        true => Cow::Borrowed(plain),
        false => Cow::Owned(format!("{plain}?{}", kept.join("&"))),
    }
}

fn name_of(pair: &str) -> String {
    pair.split('=').next().unwrap_or_default().to_ascii_lowercase()
}

/// Parts of a web server's URL that has a query.
fn web_query(url: &str) -> Option<(&str, &str)> {
    let is_web = ["http://", "https://"].iter().any(|scheme| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    url.split_once('?').filter(|_| is_web)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_known_without_its_signature() {
        for (link, object) in [
            (
                "https://b.s3.amazonaws.com/k.tar?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=1\
                 &versionId=7&X-Amz-Signature=00",
                "https://b.s3.amazonaws.com/k.tar?versionId=7",
            ),
            ("http://h/k.tar?AWSAccessKeyId=A&Expires=1&Signature=s%3D", "http://h/k.tar"),
            (
                "https://a.blob.core.windows.net/c/k.tar?sv=1&sr=b&se=2&sig=x",
                "https://a.blob.core.windows.net/c/k.tar",
            ),
            (
                "https://storage.googleapis.com/b/k?X-Goog-Signature=0&X-Goog-Date=1",
                "https://storage.googleapis.com/b/k",
            ),
            (
                "https://d.cloudfront.net/k.tar?Policy=p&Signature=s&Key-Pair-Id=K",
                "https://d.cloudfront.net/k.tar",
            ),
        ] {
            assert!(is_signed(link), "{link}");
            assert_eq!(object_of(link), object);
        }
        for plain in [
            "http://h/k.tar?part=1&se=2",
            "s3://b/k.tar?sig=x",
            "/data/k.tar?sig=x",
            "http://h/sig=1",
        ] {
            assert!(!is_signed(plain), "{plain}");
            assert_eq!(object_of(plain), plain);
        }
    }
}
