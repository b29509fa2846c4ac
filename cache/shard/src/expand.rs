//! From what a person writes to a list of shards.
//!
//! Its rule: the order written is the order kept, and nothing that was asked for is missing from
//! the list: a pattern that matches nothing is an error, never an empty answer.
//!
//! One text may hold several parts joined by `::`; braces expand in each (`{000..099}`, `{a,b}`,
//! nested); `*`, `?` and `[…]` match local files. Bare paths and `file:` URLs become absolute
//! paths, taken literally: no percent-decoding, as WebDataset reads them. A list of URLs is taken as
//! it is, without braces and globs, as WebDataset does.

mod braces;

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// The most shards that one text may name: more is a typing error, not a data set.
pub const MAX_URLS: u64 = 10_000_000;

/// The shards that `spec` means, in order.
///
/// # Errors
/// `Invalid` naming the part that cannot be understood; `NotFound` where a glob matches nothing.
pub fn expand(spec: &str) -> Result<Vec<String>> {
    let mut urls = Vec::new();
    for part in spec.split("::") {
        let named = |error: Error| error.at("urls", part);
        if part.is_empty() {
            return Err(named(invalid("a part of the URL list is empty")).at("spec", spec));
        }
        let room = MAX_URLS - urls.len() as u64;
        for url in braces::expand(part, room).map_err(named)? {
            match local_path(&url).map_err(named)? {
                Some(path) => files(&path, room, &mut urls).map_err(named)?,
                None => urls.push(remote(url).map_err(named)?),
            }
        }
    }
    Ok(urls)
}

/// The same for a list whose entries each name one shard, literally.
///
/// # Errors
/// `Invalid` for an empty list or entry, or a relative path where there is no working directory.
pub fn expand_list(list: &[String]) -> Result<Vec<String>> {
    if list.is_empty() || list.iter().any(String::is_empty) {
        return Err(invalid("the URL list is empty, or an entry of it is"));
    }
    if list.len() as u64 > MAX_URLS {
        return Err(invalid("the URL list is too long").at("limit", MAX_URLS));
    }
    let absolute = |url: &String| Ok(local_path(url)?.unwrap_or_else(|| url.clone()));
    list.iter().map(|url| absolute(url).map_err(|error: Error| error.at("url", url))).collect()
}

/// The absolute path if `url` names a local file.
fn local_path(url: &str) -> Result<Option<String>> {
    let path = match url.split_once(':') {
        Some(("file", path)) => match path.strip_prefix("//") {
            Some(rest) if rest.starts_with('/') => rest,
            Some(rest) => {
                rest.strip_prefix("localhost").filter(|p| p.starts_with('/')).ok_or_else(|| {
                    invalid("a file: URL names another host").advise("write file:///path")
                })?
            }
            None => path,
        },
        Some((_, rest)) if rest.starts_with("//") => return Ok(None),
        _ => url,
    };
    let absolute = std::path::absolute(path)
        .map_err(|error| invalid(&format!("a path cannot be made absolute: {error}")))?;
    match absolute.into_os_string().into_string() {
        Ok(text) => Ok(Some(text)),
        Err(_) => {
            Err(invalid("the working directory's name is not UTF-8")
                .advise("give an absolute path"))
        }
    }
}

fn remote(url: String) -> Result<String> {
    if url.contains('*') {
        return Err(invalid("globs match local files only").advise("write braces: {000..099}"));
    }
    Ok(url)
}

/// Appends the files that a local pattern matches, by name; a path without a pattern is kept as it
/// is, and whether it exists is found out when it is opened.
fn files(path: &str, room: u64, urls: &mut Vec<String>) -> Result<()> {
    if !path.contains(['*', '?', '[']) {
        urls.push(path.to_owned());
        return Ok(());
    }
    let before = urls.len();
    let matches =
        glob::glob(path).map_err(|error| invalid(&format!("a glob is wrong: {error}")))?;
    for found in matches {
        let found = found.map_err(|error| {
            let path = error.path().display().to_string();
            Error::from_io("read a directory", error.error()).at("path", path)
        })?;
        if (urls.len() - before) as u64 >= room {
            return Err(invalid("a glob matches too many files").at("limit", MAX_URLS));
        }
        urls.push(text(&found)?);
    }
    if urls.len() == before {
        let error = Error::new(ErrorKind::NotFound, "no file matches the glob");
        return Err(error.at("path", path));
    }
    Ok(())
}

fn text(path: &Path) -> Result<String> {
    let lossy = || invalid("a file's name is not UTF-8").at("path", path.display());
    path.to_str().map(str::to_owned).ok_or_else(lossy)
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_braces_and_schemes_keep_their_order() {
        assert_eq!(
            expand("s3://b/{08..11}.tar::https://h/x{a,b}.tar?v=1").unwrap(),
            [
                "s3://b/08.tar",
                "s3://b/09.tar",
                "s3://b/10.tar",
                "s3://b/11.tar",
                "https://h/xa.tar?v=1",
                "https://h/xb.tar?v=1"
            ]
        );
        assert_eq!(
            expand("file:///d/{1..2}.tar::file:/d/3.tar::file://localhost/d/4.tar").unwrap(),
            ["/d/1.tar", "/d/2.tar", "/d/3.tar", "/d/4.tar"]
        );
        let here = std::env::current_dir().unwrap();
        let bare = here.join("x y.tar").to_str().unwrap().to_owned();
        assert_eq!(expand("./x y.tar").unwrap(), std::slice::from_ref(&bare));
        assert_eq!(
            expand_list(&["x y.tar".into(), "s3://b/{0..1}*".into()]).unwrap()[..],
            [bare, "s3://b/{0..1}*".to_owned()]
        );
    }

    #[test]
    fn globs_match_local_files_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.tar", "a.tar", "c.txt"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let base = dir.path().to_str().unwrap();
        assert_eq!(
            expand(&format!("{base}/*.tar")).unwrap(),
            [format!("{base}/a.tar"), format!("{base}/b.tar")]
        );
        let error = expand(&format!("{base}/*.zip")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("*.zip"), "{error}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for spec in ["", "a::", "s3://b/*.tar", "file://host/a.tar", "s3://b/{0..", "{1..99999999}"]
        {
            let error = expand(spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{spec}");
            assert!(error.place("urls").is_some(), "{error}");
        }
        assert_eq!(expand_list(&[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
