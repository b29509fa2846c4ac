//! Sample and field of a tar member: WebDataset's key rules, exactly.
//!
//! The result equals that of the expression `^((?:.*/|)[^.]+)[.]([^/]*)$` and the skip pattern
//! `__[^/]*__($|/)` that WebDataset applies to member names, in one pass over the name.

/// Splits a member's name into the sample's key and the field's name.
///
/// The key is the path up to the base name's first dot (the directory and a leading `./` belong to
/// it), the field is the rest, as written: [`field_name`] folds its case. `None` means that the
/// member belongs to no sample: it has no dot, is a hidden file, or is metadata (`__name__`).
///
/// ```
/// use forebay_shard::key::split_key;
/// assert_eq!(split_key("a/b.seg.jpg"), Some(("a/b", "seg.jpg")));
/// assert_eq!(split_key("a.b/c.d"), Some(("a.b/c", "d")));
/// assert_eq!(split_key(".hidden.jpg"), None);
/// ```
#[must_use]
pub fn split_key(name: &str) -> Option<(&str, &str)> {
    if is_metadata(name) {
        return None;
    }
    let dot = key_end(name)?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// A field's name as samples carry it: in lower case.
#[must_use]
pub fn field_name(suffix: &str) -> String {
    suffix.to_lowercase()
}

/// Names that a sample carries by itself; a member may not claim them.
pub const RESERVED: [&str; 4] = ["__key__", "__url__", "__local_path__", "__bad__"];

/// Returns true if double underscores frame the first path component, as in metadata members.
fn is_metadata(name: &str) -> bool {
    let framed = |part: &str| part.len() >= 4 && part.starts_with("__") && part.ends_with("__");
    match name.split_once('/') {
        Some((first, _)) => framed(first),
        // `$` also matches in front of one final newline.
        None => framed(name) || name.strip_suffix('\n').is_some_and(framed),
    }
}

/// Returns the end of the key: the position of the base name's first dot.
///
/// The expression needs at least one character that is not a dot between some directory prefix
/// (empty, or ending in a slash, and without a newline) and that dot.
fn key_end(name: &str) -> Option<usize> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let valid = match name[..dot].rfind('.') {
        None => dot > 0,
        Some(earlier) => {
            // The earlier dot lies in a directory, so a slash follows it.
            let slash = earlier + name[earlier..dot].find('/')?;
            slash + 1 < dot && !name[..slash].contains('\n')
        }
    };
    valid.then_some(dot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;

    fn by_expression(name: &str) -> Option<(String, String)> {
        if Regex::new(r"\A(?s:__[^/]*__(\n?\z|/))").unwrap().is_match(name) {
            return None;
        }
        let groups = Regex::new(r"\A((?:.*/|)[^.]+)[.]([^/]*)\z").unwrap().captures(name)?;
        Some((groups[1].to_owned(), groups[2].to_owned()))
    }

    #[test]
    fn published_examples_split_as_expected() {
        for (name, key, field) in [
            ("a/b.seg.jpg", "a/b", "seg.jpg"),
            ("a.b/c.d", "a.b/c", "d"),
            ("a/.b.jpg", "a/", "b.jpg"),
            ("a/b.", "a/b", ""),
            ("a/b..jpg", "a/b", ".jpg"),
            ("./x.PNG", "./x", "PNG"),
            ("../../etc/passwd.txt", "../../etc/passwd", "txt"),
            ("x/__a__.jpg", "x/__a__", "jpg"),
        ] {
            assert_eq!(split_key(name), Some((key, field)), "{name}");
        }
        for name in [".hidden.jpg", "noext", "dir/noext", "__a.b__", "__m__/x.jpg", "", ".", "/"] {
            assert_eq!(split_key(name), None, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn split_agrees_with_the_regular_expression(name in "[ab./_\n]{0,12}|(__)?[a./]{0,6}(__)?[./\n]?[a.]{0,3}") {
            let ours = split_key(&name).map(|(k, f)| (k.to_owned(), f.to_owned()));
            prop_assert_eq!(ours, by_expression(&name), "{:?}", name);
        }
    }
}
