//! One page of a bucket's listing, without the keys that no request can name.
//!
//! object_store refuses a page for one key that is no path of its own: `a//b`, `./a`, a tab. Such
//! keys are taken out of the page before, and noted.

use object_store::path::Path;

/// Elements that hold a key, and the key's own element: S3's and Google's, then Microsoft's.
const ENTRIES: [(&str, &str); 4] =
    [("Contents", "Key"), ("CommonPrefixes", "Prefix"), ("Blob", "Name"), ("BlobPrefix", "Name")];

/// Returns true if a request asks for a page of a listing.
pub(super) fn is_asked_for(query: &str) -> bool {
    query.split('&').any(|pair| matches!(pair, "list-type=2" | "comp=list"))
}

/// Returns the page without the entries whose keys cannot be named, and those keys.
pub(super) fn without_odd(page: &str) -> (String, Vec<String>) {
    let (mut kept, mut odd, mut rest) = (String::with_capacity(page.len()), Vec::new(), page);
    while let Some((at, end, key)) = next_entry(rest) {
        let key = unescaped(key);
        let entry = if is_odd(&key) { at } else { end };
        kept.push_str(&rest[..entry]);
        if is_odd(&key) {
            odd.push(key);
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (kept, odd)
}

/// Start and end of the next entry, and its key as it is written.
fn next_entry(text: &str) -> Option<(usize, usize, &str)> {
    let entries = ENTRIES.iter().filter_map(|(element, name)| {
        let at = text.find(&format!("<{element}>"))?;
        let close = format!("</{element}>");
        let end = at + text[at..].find(&close)? + close.len();
        let (_, key) = text[at..end].split_once(&format!("<{name}>"))?;
        Some((at, end, key.split_once(&format!("</{name}>"))?.0))
    });
    entries.min_by_key(|(at, ..)| *at)
}

/// Returns true for a key that a request would name otherwise than it is, or not at all. A folder's
/// mark ends with a slash and is no shard.
fn is_odd(key: &str) -> bool {
    let plain = key.strip_suffix('/').unwrap_or(key);
    !plain.is_empty() && !Path::parse(plain).is_ok_and(|path| path.as_ref() == plain)
}

fn unescaped(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let named = after.split_once(';').and_then(|(name, rest)| Some((character(name)?, rest)));
        match named {
            Some((character, after)) => {
                plain.push(character);
                rest = after;
            }
            None => {
                plain.push('&');
                rest = after;
            }
        }
    }
    plain + rest
}

/// Character behind an XML entity's name.
fn character(name: &str) -> Option<char> {
    let number = name.strip_prefix('#');
    let number = number.map(|digits| match digits.strip_prefix(['x', 'X']) {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    });
    match (number, name) {
        (Some(number), _) => char::from_u32(number.ok()?),
        (None, "amp") => Some('&'),
        (None, "lt") => Some('<'),
        (None, "gt") => Some('>'),
        (None, "quot") => Some('"'),
        (None, "apos") => Some('\''),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_are_taken_out_of_a_page() {
        let entry = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let good = ["a.tar", "a b.tar", "a&amp;b.tar", "a::b.tar", "d/", "é.tar"];
        let odd = ["a//b.tar", "./a.tar", "a/../b.tar", "a&#x9;b.tar", "/a.tar", "a\tc.tar"];
        let all = good.iter().chain(&odd).map(|key| entry(key)).collect::<String>();
        let page = format!("<R>{all}<CommonPrefixes><Prefix>x//</Prefix></CommonPrefixes></R>");
        let (kept, left_out) = without_odd(&page);
        let good = good.map(entry).concat();
        assert_eq!(kept, format!("<R>{good}</R>"));
        let odd = ["a//b.tar", "./a.tar", "a/../b.tar", "a\tb.tar", "/a.tar", "a\tc.tar", "x//"];
        assert_eq!(left_out, odd);
        let azure = "<Blobs><Blob><Name>a//b</Name></Blob><Blob><Name>c</Name></Blob></Blobs>";
        let (kept, left_out) = without_odd(azure);
        assert_eq!(kept, "<Blobs><Blob><Name>c</Name></Blob></Blobs>");
        assert_eq!(left_out, ["a//b"]);
        assert_eq!(without_odd("<R></R>"), ("<R></R>".to_owned(), Vec::new()));
    }
}
