//! From what a person writes to a list of shards.
//!
//! The order written is the order kept, and nothing that was asked for is missing from
//! the list: a pattern that matches nothing is an error, never an empty answer.
//!
//! One text may hold several parts joined by `::`; braces expand in each (`{000..099}`, `{a,b}`,
//! nested); `*`, `?` and `[…]` match local files and the objects of remote stores, which somebody
//! else lists, and a remote folder (`s3://bucket/dir/`) means every shard below it. Bare paths and
//! `file:` URLs become absolute paths, taken literally: no percent-decoding, as WebDataset reads
//! them. A list of URLs is taken as it is, without braces and globs, as WebDataset does. Commands
//! (`pipe:cat /data/000.tar`) are shards only where that was asked for; braces expand in them, too.

mod braces;

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// The most shards that one text may name: more is a typing error, not a data set.
pub const MAX_URLS: u64 = 10_000_000;

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

/// Says what a pattern of a remote store means.
pub type List<'a> = dyn FnMut(&str) -> Result<Vec<String>> + 'a;

/// Permission for a list to name commands. The job's user may be another than the list's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    /// They are run by the job.
    Allowed,
    /// A list that names one is refused.
    Refused,
}

/// The shards that `spec` means, in order; `list` is asked for the patterns of remote stores.
///
/// # Errors
/// `Invalid` naming the part that cannot be understood, or a command that is refused; `NotFound`
/// where a glob matches nothing; what `list` says.
pub fn expand(spec: &str, commands: Commands, list: &mut List<'_>) -> Result<Vec<String>> {
    let mut urls = Vec::new();
    for part in spec.split("::") {
        let named = |error: Error| error.at("urls", part);
        if part.is_empty() {
            return Err(named(invalid("a part of the URL list is empty")).at("spec", spec));
        }
        let room = MAX_URLS - urls.len() as u64;
        for url in braces::expand(part, room).map_err(named)?.into_iter().map(hub) {
            if is_command(&url, commands).map_err(named)? {
                urls.push(url);
                continue;
            }
            match local_path(&url).map_err(named)? {
                Some(path) => files(&path, room, &mut urls).map_err(named)?,
                None if is_pattern(&url).map_err(named)? => urls.extend(list(&url)?),
                None => urls.push(url),
            }
            if urls.len() as u64 > MAX_URLS {
                return Err(named(invalid("the list names too many shards").at("limit", MAX_URLS)));
            }
        }
    }
    Ok(urls)
}

/// The same for a list whose entries each name one shard, literally.
///
/// # Errors
/// `Invalid` for an empty list or entry, a command that is refused, or a relative path where there
/// is no working directory.
pub fn expand_list(list: &[String], commands: Commands) -> Result<Vec<String>> {
    if list.is_empty() || list.iter().any(String::is_empty) {
        return Err(invalid("the URL list is empty, or an entry of it is"));
    }
    if list.len() as u64 > MAX_URLS {
        return Err(invalid("the URL list is too long").at("limit", MAX_URLS));
    }
    let absolute = |url: &String| {
        if is_command(url, commands)? {
            return Ok(url.clone());
        }
        let url = hub(url.clone());
        Ok(local_path(&url)?.unwrap_or(url))
    };
    list.iter().map(|url| absolute(url).map_err(|error: Error| error.at("url", url))).collect()
}

/// `hf:datasets/…` in full; other URLs as they are.
fn hub(url: String) -> String {
    match url.strip_prefix("hf:").filter(|rest| !rest.starts_with("//")) {
        Some(rest) => format!("hf://{}", rest.trim_start_matches('/')),
        None => url,
    }
}

/// Returns true if `url` names a command that may be run.
fn is_command(url: &str, commands: Commands) -> Result<bool> {
    let trimmed = url.trim_start();
    let scheme = trimmed.split_once(':').map(|(scheme, _)| scheme);
    if !scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("pipe")) {
        return Ok(false);
    }
    if commands == Commands::Refused {
        let what = "commands need explicit permission";
        return Err(invalid(what).advise(
            "name what the command reads, as in s3://bucket/key, https://host/path or a path; or, if you \
             trust the list, give allow_pipe=True (`--allow-pipe` to `forebay index`)",
        ));
    }
    match forebay_error::command(url) {
        Some(command) if !command.trim().is_empty() => Ok(true),
        _ => Err(invalid("a command's URL is `pipe:` followed by the command")),
    }
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

/// Returns true if a URL is a pattern over a store's listing.
fn is_pattern(url: &str) -> Result<bool> {
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    if !is_web {
        return Ok(url.ends_with('/') || url.contains(GLOB));
    }
    // A query may hold anything.
    let path = url.split(['?', '#']).next().unwrap_or_default();
    match path.contains('*') || path.ends_with('/') {
        false => Ok(false),
        true => Err(invalid("a web server cannot list its files")
            .advise("write braces, as in {000..099}, or name every shard")),
    }
}

/// Appends the files that a local pattern matches, by name; a path without a pattern is kept as it
/// is, and whether it exists is found out when it is opened.
fn files(path: &str, room: u64, urls: &mut Vec<String>) -> Result<()> {
    if !path.contains(GLOB) {
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

    fn expand(spec: &str) -> Result<Vec<String>> {
        super::expand(spec, Commands::Refused, &mut |pattern| panic!("{pattern} is listed"))
    }

    fn expand_list(list: &[String]) -> Result<Vec<String>> {
        super::expand_list(list, Commands::Refused)
    }

    #[test]
    fn quoted_colons_are_part_of_a_key() {
        let mut asked = Vec::new();
        let urls =
            super::expand("s3://b/a[:]:c.tar::s3://b/d.tar", Commands::Refused, &mut |url| {
                asked.push(url.to_owned());
                Ok(vec!["s3://b/a::c.tar".to_owned()])
            });
        assert_eq!(urls.unwrap(), ["s3://b/a::c.tar", "s3://b/d.tar"]);
        assert_eq!(asked, ["s3://b/a[:]:c.tar"]);
    }

    #[test]
    fn commands_are_rejected_unless_allowed() {
        for spec in ["pipe:cat /x.tar", " PIPE:cat x", "s3://b/k.tar::pipe:curl h", "pipe:"] {
            let error = expand(spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{spec}");
            assert!(error.to_string().contains("allow_pipe=True"), "{error}");
        }
        let list = ["/x.tar", "pipe:cat x"].map(str::to_owned);
        assert_eq!(expand_list(&list).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(expand("/pipe:x").unwrap(), ["/pipe:x"]);
    }

    #[test]
    fn allowed_commands_expand_braces_only() {
        let expand = |spec| {
            let list = &mut |pattern: &str| panic!("{pattern} is listed");
            super::expand(spec, Commands::Allowed, list)
        };
        assert_eq!(
            expand("/a.tar::pipe:cat /d/{08..09}.tar | head -c 1*2").unwrap(),
            ["/a.tar", "pipe:cat /d/08.tar | head -c 1*2", "pipe:cat /d/09.tar | head -c 1*2"]
        );
        for spec in ["pipe:", "pipe:  ", " pipe:cat x", "PIPE:cat x"] {
            assert_eq!(expand(spec).unwrap_err().kind(), ErrorKind::Invalid, "{spec}");
        }
        let list = ["x".to_owned(), "pipe:awk '{print}' /d/{0..1}.tar".to_owned()];
        assert_eq!(super::expand_list(&list, Commands::Allowed).unwrap()[1], list[1]);
    }

    #[test]
    fn store_patterns_are_listed_in_order() {
        let mut asked = Vec::new();
        let mut list = |pattern: &str| {
            asked.push(pattern.to_owned());
            match pattern.contains("none") {
                true => Err(Error::new(ErrorKind::NotFound, "nothing").at("urls", pattern)),
                false => Ok(vec![format!("{pattern}#1"), format!("{pattern}#2")]),
            }
        };
        let spec = "s3://b/{0..1}.tar::gs://b/{x,y}-*.tar::az://c/dir/::s3://b/last.tar";
        assert_eq!(
            super::expand(spec, Commands::Refused, &mut list).unwrap(),
            [
                "s3://b/0.tar",
                "s3://b/1.tar",
                "gs://b/x-*.tar#1",
                "gs://b/x-*.tar#2",
                "gs://b/y-*.tar#1",
                "gs://b/y-*.tar#2",
                "az://c/dir/#1",
                "az://c/dir/#2",
                "s3://b/last.tar"
            ]
        );
        let error = super::expand("s3://b/none?.tar", Commands::Refused, &mut list).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(asked.last().unwrap(), "s3://b/none?.tar");
    }

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
        assert_eq!(
            expand("hf:datasets/o/n/{0..1}.tar::hf://datasets/o/n/2.tar").unwrap(),
            ["hf://datasets/o/n/0.tar", "hf://datasets/o/n/1.tar", "hf://datasets/o/n/2.tar"]
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
    fn invalid_specs_are_rejected_naming_urls() {
        for spec in [
            "",
            "a::",
            "https://b/*.tar",
            "http://b/d/?x",
            "file://host/a.tar",
            "s3://b/{0..",
            "{1..99999999}",
        ] {
            let error = expand(spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{spec}");
            assert!(error.place("urls").is_some(), "{error}");
        }
        assert_eq!(expand_list(&[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
