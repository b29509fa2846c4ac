//! Checks of an encrypted tier: the key file, and the processor's instructions for AES.
//!
//! The check fails exactly where a daemon would not open the tier. It never shows a key.

use forebay_config::settings::NodeTier;
use forebay_store::{Encryption, KeyKind, Secret};

use super::finding::Finding;
use super::machine::Machine;
use super::plan::{Plan, advice, without_advice};

const CHECK: &str = "encryption";

/// Words of `/proc/cpuinfo` that list what a processor can do: on x86 and on ARM.
const ABILITIES: [&str; 2] = ["flags", "Features"];

/// The ability to encrypt with AES, as both call it.
const AES: &str = "aes";

pub(super) fn check(machine: &Machine, plan: &Plan, at: usize, tier: &NodeTier) -> Option<Finding> {
    let encryption = tier.encryption.as_ref()?;
    if let Encryption::KeyFile(path) = encryption
        && let Err(error) = Secret::read(path)
    {
        let place = plan.place("tier", at, "encryption");
        let mend = format!("{place}: {}", advice(&error, "name a key file that can be read"));
        return Some(Finding::wrong(CHECK, without_advice(&error), mend));
    }
    let kind = match encryption.kind() {
        KeyKind::KeyFile => "a key file",
        KeyKind::Ephemeral => "a key that lives as long as the daemon",
    };
    Some(match has_aes(machine) {
        Some(false) => Finding::warn(
            CHECK,
            format!("AES-256-XTS with {kind}; the processor has no instructions for AES"),
            "expect a fraction of the disk's speed; in a virtual machine, pass the host's `aes` on",
        ),
        Some(true) => Finding::ok(CHECK, format!("AES-256-XTS with {kind}, by the processor")),
        None => Finding::ok(CHECK, format!("AES-256-XTS with {kind}")),
    })
}

/// Returns true if the processor has instructions for AES; none if the kernel does not say.
fn has_aes(machine: &Machine) -> Option<bool> {
    let text = machine.proc("cpuinfo")?;
    let list = text.lines().find_map(|line| {
        let (name, list) = line.split_once(':')?;
        ABILITIES.contains(&name.trim()).then_some(list)
    })?;
    Some(list.split_whitespace().any(|ability| ability == AES))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    fn of(cpuinfo: &str, encryption: &str) -> Option<Finding> {
        let text = format!("[[tier]]\nname = 'a'\npath = '/m'\ncapacity = '1GiB'\n{encryption}");
        let (plan, _folder) = test_plan(&text);
        let recorded = Recorded::new().proc("cpuinfo", cpuinfo);
        check(&recorded.machine, &plan, 0, &plan.tiers[0])
    }

    #[test]
    fn processor_without_aes_is_a_warning() {
        let ephemeral = "encryption = 'ephemeral'\n";
        let verdict = |cpuinfo| of(cpuinfo, ephemeral).unwrap().verdict;
        assert_eq!(verdict("flags\t\t: fpu aes avx2\n"), Verdict::Ok);
        assert_eq!(verdict("Features\t: fp asimd aes\n"), Verdict::Ok);
        assert_eq!(verdict("flags\t\t: fpu aesx vaes\n"), Verdict::Warn);
        assert_eq!(verdict("processor : 0\n"), Verdict::Ok, "unknown is no fault");
        assert!(of("flags : fpu\n", "").is_none(), "the tier is not encrypted");
    }

    #[test]
    fn key_file_that_others_read_is_wrong_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.key");
        let key: String = ('A'..='Z').chain('1'..='6').collect();
        std::fs::write(&path, &key).unwrap();
        let text = format!("encryption = {{ key_file = '{}' }}\n", path.display());
        for (mode, verdict) in [(0o644, Verdict::Wrong), (0o400, Verdict::Ok)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let finding = of("flags : aes\n", &text).unwrap();
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(!format!("{finding:?}").contains(&key[..8]), "the key is shown");
        }
    }
}
