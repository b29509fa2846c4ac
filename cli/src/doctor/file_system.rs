//! File system of a tier's directory, and its mount options.
//!
//! It is called by its name; the same few words say the consequence for a cache.

use super::finding::Finding;
use super::mount_facts::MountFacts;
use super::plan::Plan;

const CHECK: &str = "file_system";

/// File systems that lie elsewhere: a cache there would read every byte over a network twice.
const NETWORK: [(&str, &str); 22] = [
    ("nfs", "NFS"),
    ("nfs4", "NFS"),
    ("lustre", "Lustre"),
    ("gpfs", "GPFS"),
    ("beegfs", "BeeGFS"),
    ("ceph", "CephFS"),
    ("cifs", "SMB"),
    ("smb3", "SMB"),
    ("wekafs", "WekaFS"),
    ("panfs", "PanFS"),
    ("pvfs2", "OrangeFS"),
    ("afs", "AFS"),
    ("glusterfs", "GlusterFS"),
    ("quobyte", "Quobyte"),
    ("9p", "a share of the host's"),
    ("virtiofs", "a share of the host's"),
    ("vboxsf", "a share of the host's"),
    ("fuse.sshfs", "SSHFS"),
    ("fuse.juicefs", "JuiceFS"),
    ("fuse.gcsfuse", "Cloud Storage by FUSE"),
    ("fuse.mount-s3", "S3 by FUSE"),
    ("fuse", "FUSE"),
];

/// File systems that do not keep a cache as well as others do, why, and what helps.
const POOR: [(&str, &str, &str); 3] = [
    (
        "btrfs",
        "it copies on write and checksums every block again",
        "`chattr +C DIR` while DIR is empty, or a file system like ext4 or xfs",
    ),
    ("zfs", "it keeps a cache of its own in memory", "`zfs set primarycache=metadata DATASET`"),
    ("f2fs", "it moves data by itself", "a file system like ext4 or xfs"),
];

pub(super) fn check(plan: &Plan, at: usize, facts: &MountFacts) -> Finding {
    let Some(mount) = &facts.mount else {
        return Finding::skipped(CHECK, "the kernel does not list the mounts");
    };
    let (kind, point) = (mount.kind.as_str(), mount.at.display());
    let place = plan.place("tier", at, "path");
    let told = |what: &str| format!("{what}, mounted at {point}");
    let finding = if let Some(name) = network(kind) {
        Finding::wrong(
            CHECK,
            told(&format!("{name}: its reads cross a network already")),
            format!("{place}: name a directory on a local disk"),
        )
    } else if mount.has("ro") {
        Finding::wrong(
            CHECK,
            told(&format!("{kind}, read-only")),
            format!("`mount -o remount,rw {point}`; if that fails, see `dmesg` for why"),
        )
    } else if kind == "overlay" {
        Finding::warn(
            CHECK,
            told("overlay: a container's own layer, lost with it, and often small"),
            format!("mount a disk there: `docker run -v /mnt/nvme0:{}`", facts.nearest.display()),
        )
    } else if mount.is_in_memory() {
        Finding::warn(
            CHECK,
            told(&format!("{kind}: memory, charged to the daemon and lost at a restart")),
            format!(
                "{place}: name a directory on a disk, or make it `class = \"memory\"`, no path"
            ),
        )
    } else if !facts.exists && mount.at.as_os_str() == "/" && plan.is_node() {
        Finding::warn(
            CHECK,
            format!(
                "the directory does not exist, and would be made on the root file system ({kind})"
            ),
            format!(
                "mount the disk below {} first (`lsblk -f` names them), or {place}: name another \
                 directory",
                facts.nearest.display()
            ),
        )
    } else if let Some((_, why, cure)) = POOR.iter().find(|(poor, _, _)| *poor == kind) {
        Finding::warn(CHECK, told(&format!("{kind}: {why}")), *cure)
    } else if mount.has("sync") {
        let mend = format!("`mount -o remount,async {point}`");
        Finding::warn(CHECK, told(&format!("{kind} with `sync`: each write waits")), mend)
    } else if !mount.has("relatime") && !mount.has("noatime") {
        let mend = format!("`mount -o remount,noatime {point}`, and in /etc/fstab");
        Finding::warn(CHECK, told(&format!("{kind} without noatime: it writes on each read")), mend)
    } else {
        Finding::ok(CHECK, told(kind))
    };
    finding.figure("type", kind).figure("mounted_at", point.to_string())
}

/// Returns the name of a network file system.
fn network(kind: &str) -> Option<&'static str> {
    let known = NETWORK.iter().find(|(known, _)| *known == kind);
    // An unknown file system behind FUSE is FUSE; `fuseblk` is a local disk.
    let known = known.or_else(|| NETWORK.last().filter(|_| kind.starts_with("fuse.")));
    known.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    const TEXT: &str = "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n";

    fn of(facts: &MountFacts) -> Finding {
        let (plan, _folder) = test_plan(TEXT);
        check(&plan, 0, facts)
    }

    #[test]
    fn local_disks_are_ok() {
        assert_eq!(of(&MountFacts::sound()).verdict, Verdict::Ok);
        assert_eq!(of(&MountFacts::on("xfs", &["rw", "noatime"])).verdict, Verdict::Ok);
        assert_eq!(of(&MountFacts::on("fuseblk", &["rw", "relatime"])).verdict, Verdict::Ok);
    }

    #[test]
    fn remote_file_systems_are_wrong_and_named() {
        for (kind, name) in [
            ("nfs4", "NFS"),
            ("lustre", "Lustre"),
            ("virtiofs", "host"),
            ("fuse.sshfs", "SSHFS"),
            ("fuse.something", "FUSE"),
        ] {
            let finding = of(&MountFacts::on(kind, &["rw", "relatime"]));
            assert_eq!(finding.verdict, Verdict::Wrong, "{kind}");
            assert!(finding.found.starts_with(name) || finding.found.contains(name), "{finding:?}");
            assert!(finding.mend.unwrap().contains("forebay.toml:3"));
        }
    }

    #[test]
    fn tmpfs_and_overlay_are_warnings() {
        let memory = of(&MountFacts::on("tmpfs", &["rw"]));
        assert_eq!(memory.verdict, Verdict::Warn);
        assert!(memory.found.contains("memory"), "{memory:?}");
        let layer = of(&MountFacts::on("overlay", &["rw", "relatime"]));
        assert_eq!(layer.verdict, Verdict::Warn);
        assert!(layer.mend.unwrap().contains("docker run -v"));
    }

    #[test]
    fn mount_options_come_with_a_remedy() {
        for (kind, options, verdict, cure) in [
            ("ext4", &["ro", "relatime"][..], Verdict::Wrong, "remount,rw /mnt/nvme0"),
            ("ext4", &["rw", "relatime", "sync"], Verdict::Warn, "remount,async"),
            ("ext4", &["rw"], Verdict::Warn, "remount,noatime"),
            ("btrfs", &["rw", "relatime"], Verdict::Warn, "chattr +C"),
        ] {
            let finding = of(&MountFacts::on(kind, options));
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.mend.as_deref().unwrap().contains(cure), "{finding:?}");
        }
    }

    #[test]
    fn unmounted_disk_is_a_warning() {
        let mut facts = MountFacts::sound();
        facts.exists = false;
        facts.mount.as_mut().unwrap().at = "/".into();
        facts.nearest = "/mnt".into();
        let finding = of(&facts);
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.mend.unwrap().contains("lsblk"));
        facts.exists = true;
        assert_eq!(of(&facts).verdict, Verdict::Ok, "it is meant to be there");
        facts.mount = None;
        assert_eq!(of(&facts).verdict, Verdict::Skipped);
    }
}
