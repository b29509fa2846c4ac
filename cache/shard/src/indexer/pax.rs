//! PAX extended headers: the records that change where a member lies, what it is called, or what it
//! links to.
//!
//! A record list is taken whole or refused; two readers must not be able to see two
//! different members in it.

/// A PAX header's statements about the next member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) linkpath: Option<Vec<u8>>,
}

/// Parses `"LEN KEY=VALUE\n"` records; of a repeated key the last one counts, as POSIX says.
///
/// The error says what is wrong with them, for a person.
pub(super) fn parse(mut rest: &[u8]) -> Result<Pax, &'static str> {
    let mut pax = Pax::default();
    // Writers pad with NULs now and then; the records end at the first one.
    while rest.first().is_some_and(|&byte| byte != 0) {
        let (key, value, after) = record(rest).ok_or("a malformed PAX record")?;
        if key.starts_with(b"GNU.sparse.") {
            return Err("a sparse file, which a shard may not hold");
        }
        match key {
            b"path" => {
                let kept = value.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
                pax.path = Some(value[..kept].to_vec());
            }
            b"linkpath" => pax.linkpath = Some(value.to_vec()),
            b"size" => pax.size = Some(number(value).ok_or("a PAX size that is not a number")?),
            _ => {}
        }
        rest = after;
    }
    Ok(pax)
}

/// Splits the first record off: its key, its value and what follows it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|&byte| byte == b' ')?;
    let len = usize::try_from(number(&bytes[..space])?).ok()?;
    if len <= space + 1 || len > bytes.len() || bytes[len - 1] != b'\n' {
        return None;
    }
    let body = &bytes[space + 1..len - 1];
    let equals = body.iter().position(|&byte| byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], &bytes[len..]))
}

/// Digits only: no sign, no blank, no overflow.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_may_hold_newlines_and_equals_signs() {
        let pax = parse(b"13 path=a\n=b\n11 size=42\n\0\0").unwrap();
        assert_eq!(pax, Pax { path: Some(b"a\n=b".to_vec()), size: Some(42), linkpath: None });
    }

    #[test]
    fn invalid_pax_records_are_rejected() {
        for bad in [
            &b"12 path=a\n"[..],
            b"999999999999999999999999 path=a\n",
            b"0 path=a\n",
            b"2 \n",
            b"12 size=+42\n",
            b"31 size=99999999999999999999999\n",
            b"22 GNU.sparse.major=1\n",
            b"path=a\n",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
