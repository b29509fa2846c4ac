//! Names and end of a node's certificate, for those who look after it.
//!
//! The TLS library checks certificates; this reads two fields of one, and trusts nothing.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// ASN.1 tags.
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// Tag of the version, which old certificates leave out.
const VERSION: u8 = 0xa0;

/// First year of the two digits of a UTC time: 50 is 1950, 49 is 2049 (RFC 5280).
const UTC_TURN: u32 = 50;

/// A node's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CertificateReport {
    /// DNS names in it.
    pub names: Vec<String>,
    /// End of its validity (RFC 3339); none if it cannot be read.
    pub ends: Option<String>,
    /// Seconds from 1970 to that end.
    pub ends_unix: Option<u64>,
}

impl CertificateReport {
    /// Describes a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let parsed = webpki::EndEntityCert::try_from(certificate).ok();
        let names = parsed.map(|parsed| parsed.valid_dns_names().map(str::to_owned).collect());
        let ends = end(certificate);
        let since_1970 = |end: SystemTime| end.duration_since(SystemTime::UNIX_EPOCH).ok();
        Self {
            names: names.unwrap_or_default(),
            ends: ends.map(|end| humantime::format_rfc3339_seconds(end).to_string()),
            ends_unix: ends.and_then(since_1970).map(|end| end.as_secs()),
        }
    }
}

/// Returns the end of a certificate's validity.
fn end(der: &[u8]) -> Option<SystemTime> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (signed, _) = element(certificate, SEQUENCE)?;
    let rest = element(signed, VERSION).map_or(signed, |(_, rest)| rest);
    // Serial number, algorithm and issuer come before.
    let (_, rest) = element(rest, INTEGER)?;
    let (_, rest) = element(rest, SEQUENCE)?;
    let (_, rest) = element(rest, SEQUENCE)?;
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, rest) = time(validity)?;
    time(rest).map(|(end, _)| end)
}

/// Returns the time at the start of `der`, and the rest.
fn time(der: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (text, rest, century) = match element(der, UTC_TIME) {
        Some((text, rest)) => {
            let year: u32 = std::str::from_utf8(text.get(..2)?).ok()?.parse().ok()?;
            (text, rest, if year < UTC_TURN { "20" } else { "19" })
        }
        None => element(der, GENERALIZED_TIME).map(|(text, rest)| (text, rest, ""))?,
    };
    let digits = format!("{century}{}", std::str::from_utf8(text).ok()?);
    let part = |range: std::ops::Range<usize>| digits.get(range);
    let (date, clock) = (
        format!("{}-{}-{}", part(0..4)?, part(4..6)?, part(6..8)?),
        format!("{}:{}:{}", part(8..10)?, part(10..12)?, part(12..14)?),
    );
    let time = humantime::parse_rfc3339(&format!("{date}T{clock}Z")).ok()?;
    Some((time, rest))
}

/// Returns the content of the element at the start of `der`, which must have this tag, and the
/// rest.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let mut len = 0_usize;
            for digit in digits {
                len = len.checked_mul(256)?.checked_add(usize::from(*digit))?;
            }
            (len, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    (found == tag).then_some((content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82, len[0], len[1]], content].concat()
    }

    fn certificate(version: bool, end: &[u8]) -> Vec<u8> {
        let validity = [of(UTC_TIME, b"240101000000Z"), end.to_vec()].concat();
        let mut signed = if version { of(VERSION, &of(INTEGER, &[2])) } else { Vec::new() };
        for (tag, content) in
            [(INTEGER, &b"7"[..]), (SEQUENCE, b""), (SEQUENCE, b""), (SEQUENCE, &validity)]
        {
            signed.extend(of(tag, content));
        }
        of(SEQUENCE, &of(SEQUENCE, &signed))
    }

    #[test]
    fn end_of_a_certificate_is_read() {
        for (tag, text, wanted) in [
            (UTC_TIME, &b"491231235959Z"[..], "2049-12-31T23:59:59Z"),
            (UTC_TIME, b"991231235959Z", "1999-12-31T23:59:59Z"),
            (GENERALIZED_TIME, b"20500101000000Z", "2050-01-01T00:00:00Z"),
        ] {
            for version in [true, false] {
                let read = end(&certificate(version, &of(tag, text))).unwrap();
                assert_eq!(humantime::format_rfc3339_seconds(read).to_string(), wanted);
            }
        }
    }

    #[test]
    fn malformed_certificates_have_no_end() {
        let good = certificate(true, &of(UTC_TIME, b"491231235959Z"));
        (0..good.len()).for_each(|len| assert_eq!(end(&good[..len]), None, "{len}"));
        for bad in [
            certificate(true, &of(UTC_TIME, b"")),
            certificate(true, &of(UTC_TIME, "é0101000000Z".as_bytes())),
            certificate(true, &of(GENERALIZED_TIME, b"20501301000000Z")),
            certificate(true, &of(INTEGER, b"491231235959Z")),
            vec![SEQUENCE, 0xff, 1, 2, 3],
        ] {
            assert_eq!(end(&bad), None, "{bad:?}");
        }
    }
}
