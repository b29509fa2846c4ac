//! Certificates of authorities, by which stores prove who they are.
//!
//! They are this process's: a daemon that runs elsewhere, or with another environment, may have
//! others.

use std::env;

use forebay_error::Result;
use forebay_source::system_authorities;

use super::finding::Finding;
use super::plan::{advice, without_advice};

const CHECK: &str = "certificates";

/// The variable whose certificates are enough by themselves.
const BUNDLE: &str = "AWS_CA_BUNDLE";

pub(super) fn check() -> Finding {
    let bundle = env::var(BUNDLE).ok().filter(|path| !path.is_empty());
    judge(system_authorities(), bundle.as_deref())
}

fn judge(found: Result<usize>, bundle: Option<&str>) -> Finding {
    match (found, bundle) {
        (Ok(count), _) => Finding::ok(CHECK, format!("{count} trusted certificate authorities"))
            .figure("authorities", count),
        (Err(_), Some(bundle)) => {
            Finding::ok(CHECK, format!("the system has none; {BUNDLE} names {bundle}"))
                .figure("authorities", 0)
        }
        // Files and plain HTTP need none, nor does a store that has a bundle of its own.
        (Err(error), None) => Finding::warn(
            CHECK,
            format!(
                "{}: only a store whose [[source]] has a ca_bundle is reached by it",
                without_advice(&error)
            ),
            advice(&error, "install them"),
        )
        .figure("authorities", 0),
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};

    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn missing_certificates_are_a_warning_unless_a_bundle_is_named() {
        let missing = || Err(Error::new(ErrorKind::Invalid, "none").advise("install them"));
        assert_eq!(judge(Ok(140), None).verdict, Verdict::Ok);
        assert_eq!(judge(missing(), Some("/ca.pem")).verdict, Verdict::Ok);
        let found = judge(missing(), None);
        assert_eq!((found.verdict, found.mend.as_deref()), (Verdict::Warn, Some("install them")));
    }
}
