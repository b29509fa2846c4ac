//! Bytes behind hard and symbolic links: those of an earlier member of the same tar.
//!
//! A link never leads out of its tar, and never forward: the bytes of a later member are not there
//! yet while a shard arrives.

use std::collections::HashMap;

/// Place and checksum of a member's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) crc32c: u32,
}

/// Link of a tar: the name it gives, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// Counts from the tar's root.
    Hard(Vec<u8>),
    /// Counts from the link's own folder.
    Symbolic(Vec<u8>),
}

impl Link {
    /// Returns the name as it is written.
    pub(super) fn target(&self) -> &[u8] {
        match self {
            Self::Hard(target) | Self::Symbolic(target) => target,
        }
    }
}

/// Members so far, by their names as a file system would understand them. Of members with one name
/// the last counts, as in an unpacked tar.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Box<[u8]>, Stored>);

impl Names {
    /// Adds a member; a link may name it from now on.
    pub(super) fn add(&mut self, name: &[u8], stored: Stored) {
        if let Some(name) = below_root(&[], name) {
            self.0.insert(name, stored);
        }
    }

    /// Returns the data that a link called `name` stands for, if an earlier member has it.
    pub(super) fn resolve(&self, name: &[u8], link: &Link) -> Option<Stored> {
        let target = match link {
            // GNU tar strips the leading slash of a hard link's two names alike.
            Link::Hard(target) => below_root(&[], target),
            Link::Symbolic(target) if target.starts_with(b"/") => None,
            Link::Symbolic(target) => {
                let folder = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                below_root(&name[..folder], target)
            }
        };
        self.0.get(&target?).copied()
    }
}

/// Joins a folder and a path, without `.`, `..` and repeated slashes; `None` for a path that leads
/// out of the root.
fn below_root(folder: &[u8], path: &[u8]) -> Option<Box<[u8]>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in [folder, path].into_iter().flat_map(|path| path.split(|&byte| byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Stored = Stored { offset: 512, len: 3, crc32c: 7 };

    #[test]
    fn links_resolve_as_in_an_unpacked_tar() {
        let mut names = Names::default();
        names.add(b"./a/b.jpg", HERE);
        let hard = |target: &[u8]| names.resolve(b"x/y.jpg", &Link::Hard(target.to_vec()));
        let symbolic = |target: &[u8]| names.resolve(b"x/y.jpg", &Link::Symbolic(target.to_vec()));
        for target in ["a/b.jpg", "./a/b.jpg", "/a/b.jpg", "a//b.jpg", "a/../a/b.jpg"] {
            assert_eq!(hard(target.as_bytes()), Some(HERE), "{target}");
        }
        assert_eq!(symbolic(b"../a/b.jpg"), Some(HERE));
        for target in ["a/b.jpg", "/a/b.jpg", "../../a/b.jpg", "../a", ""] {
            assert_eq!(symbolic(target.as_bytes()), None, "{target}");
        }
        assert_eq!(hard(b"../a/b.jpg"), None);
    }

    #[test]
    fn last_of_repeated_names_counts() {
        let (mut names, later) = (Names::default(), Stored { offset: 2048, ..HERE });
        names.add(b"a.jpg", HERE);
        names.add(b"./a.jpg", later);
        assert_eq!(names.resolve(b"b.jpg", &Link::Hard(b"a.jpg".to_vec())), Some(later));
    }
}
