//! Secrets in texts that leave the process: log lines, and the parts of a support bundle.
//!
//! Rule: known places hold secrets wherever they stand in a text: the user part and the query of a
//! URL, and the value behind the name of a secret.

use std::borrow::Cow;

/// Replacement of a secret.
const HIDDEN: &str = "…";

/// Names whose values are secrets, as the ends of lower-case names: `secret_access_key`,
/// `x-amz-security-token`, `AWS_SESSION_TOKEN`.
const SECRETS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secret_key",
    "access_key",
    "account_key",
    "token",
    "signature",
    "credential",
    "authorization",
    "cookie",
];

/// Returns the text without the secrets that stand in known places.
#[must_use]
pub fn redacted(text: &str) -> Cow<'_, str> {
    if !text.contains("://") && !text.contains(['=', ':']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(without_values(&without_url_secrets(text)))
}

/// Ends a URL within a text.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "\"'<>(){}[]|\\^`".contains(c)
}

fn without_url_secrets(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + "://".len());
        kept.push_str(before);
        let url_end = url.find(ends_url).unwrap_or(url.len());
        let (url, after) = url.split_at(url_end);
        let host_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (host, path) = url.split_at(host_end);
        kept.push_str(host.rsplit_once('@').map_or(host, |(_, host)| host));
        match path.split_once('?') {
            Some((path, _)) => {
                kept.push_str(path);
                kept.push('?');
                kept.push_str(HIDDEN);
            }
            None => kept.push_str(path),
        }
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// Hides what follows `name=`, `name: ` and `"name":"`.
fn without_values(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['=', ':']) {
        let (before, behind) = rest.split_at(at);
        let (sign, behind) = behind.split_at(1);
        kept.push_str(before);
        kept.push_str(sign);
        rest = behind;
        if !is_secret(before) {
            continue;
        }
        let value = behind.trim_start_matches([' ', '"', '\'']);
        let (lead, value) = behind.split_at(behind.len() - value.len());
        let is_quoted = lead.contains(['"', '\'']);
        // A member of a JSON object that is no string.
        if before.ends_with('"') && !is_quoted {
            continue;
        }
        // Of a header, the scheme and the value: `Authorization: Bearer …`.
        let end = match sign == ":" && !is_quoted {
            true => value.find(['\n', '\r']),
            false => value.find(|c: char| c.is_whitespace() || "\"'&,;)}".contains(c)),
        };
        let end = end.unwrap_or(value.len());
        if end > 0 && !value.starts_with("//") {
            kept.push_str(lead);
            kept.push_str(HIDDEN);
            rest = &value[end..];
        }
    }
    kept.push_str(rest);
    kept
}

/// True if the last word of a text is the name of a secret.
fn is_secret(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'', ' ']);
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let start = text
        .rfind(|c: char| !is_part(c))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let name = text[start..].to_ascii_lowercase().replace('-', "_");
    SECRETS.iter().any(|secret| name.ends_with(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret in each known place, and what stays around it.
    #[test]
    fn secrets_are_hidden_and_their_places_stay() {
        for (text, right) in [
            ("GET https://u:hunter2@h/a.tar 200", "GET https://h/a.tar 200"),
            ("url=https://h/a.tar?sig=hunter2&x=1 status=403", "url=https://h/a.tar?… status=403"),
            ("\"url\":\"https://h/a?X-Amz-Signature=hunter2\",", "\"url\":\"https://h/a?…\","),
            (
                "36 35 0:3 / /mnt rw - fuse.dav https://u:hunter2@h/ rw",
                "36 35 0:3 / /mnt rw - fuse.dav https://h/ rw",
            ),
            ("rw,username=u,password=hunter2,vers=3", "rw,username=u,password=…,vers=3"),
            ("AWS_SECRET_ACCESS_KEY=hunter2 AWS_REGION=x", "AWS_SECRET_ACCESS_KEY=… AWS_REGION=x"),
            (
                "{\"aws_session_token\": \"hunter2\", \"a\": 1}",
                "{\"aws_session_token\": \"…\", \"a\": 1}",
            ),
            ("Authorization: Bearer hunter2\nHost: h", "Authorization: …\nHost: h"),
            ("x-amz-security-token: hunter2", "x-amz-security-token: …"),
            ("redis://user:hunter2@h:6379/0", "redis://h:6379/0"),
        ] {
            assert_eq!(redacted(text), right);
            assert_eq!(redacted(right), right, "hidden twice");
        }
    }

    #[test]
    fn plain_text_stays() {
        for text in [
            "",
            "a",
            "token_file = \"/etc/forebay/token\"",
            "a=b c:d",
            "12:30:00 INFO opened a job",
            "s3://bucket/train-000.tar",
            "{\"token\": null, \"a\": 1}",
            "http://[::1]:9480/metrics",
            "tokens=3",
            "é=ü…: ö",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
