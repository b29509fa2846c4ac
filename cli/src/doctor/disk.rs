//! The block device under a tier: whether it is what the tier says it is, and how it is driven.
//!
//! Only the kernel's own words count, device by device down a stack of volumes; how worn a
//! drive is, is for its maker's tools to say.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_store::Class;

use super::finding::{Finding, listed};
use super::machine::Machine;
use super::mount_facts::MountFacts;
use super::plan::Plan;

const CHECK: &str = "disk";

/// Devices deep that a stack (LVM on RAID on partitions) is looked through: real ones have three.
const MAX_STACK: u32 = 8;

/// Prefixes of virtual devices, which report any medium: a hypervisor, a server or the file of a
/// loop device has the real one.
const VIRTUAL: [&str; 8] = ["vd", "xvd", "nbd", "rbd", "drbd", "loop", "zd", "ublk"];

/// SCSI vendors of virtual disks: hypervisors and iSCSI targets.
const VIRTUAL_VENDORS: [&str; 8] =
    ["QEMU", "VMware", "VBOX", "Msft", "Google", "XENSRC", "LIO-ORG", "IET"];

/// A block device, a whole one.
struct Device {
    name: String,
    directory: PathBuf,
}

pub(super) fn check(machine: &Machine, plan: &Plan, at: usize, facts: &MountFacts) -> Finding {
    let Some(tier) = plan.tiers.get(at) else {
        return Finding::skipped(CHECK, "there is no such tier");
    };
    let Some(device) = find(machine, facts) else {
        return Finding::skipped(CHECK, format!("no block device is under {}", facts.kind()));
    };
    let drives = drives(&device, MAX_STACK);
    let names: Vec<_> = drives.iter().map(|drive| drive.name.as_str()).collect();
    let whole = match names.as_slice() {
        [only] if *only == device.name => device.name.clone(),
        names => format!("{} of {}", device.name, listed(names)),
    };
    let one =
        |file: &str, value: &str| read(&device.directory.join(file)).as_deref() == Some(value);
    let is_virtual = drives.iter().any(is_virtual);
    let spins = drives.iter().any(spins);
    let is_nvme = !drives.is_empty() && drives.iter().all(|drive| drive.name.starts_with("nvme"));
    let slow = drives.iter().find_map(|drive| Some((drive, slow_scheduler(drive)?)));
    let finding = if one("ro", "1") {
        let name = &device.name;
        let mend =
            format!("`blockdev --setrw /dev/{name}`; if it is write-protected, another disk");
        Finding::wrong(CHECK, format!("{whole} is read-only"), mend)
    } else if whole.starts_with("zram") {
        let mend = format!("{}: name a directory on a disk", plan.place("tier", at, "path"));
        Finding::warn(CHECK, format!("{whole} is compressed memory"), mend)
    } else if spins && matches!(tier.class, Class::Nvme | Class::Ssd) {
        let mend = match plan.is_node() {
            true => format!("{}: set class = \"hdd\"", plan.place("tier", at, "class")),
            false => "set FOREBAY_CACHE to a directory on a solid-state drive".to_owned(),
        };
        Finding::warn(
            CHECK,
            format!("{whole} is a spinning disk: a few hundred reads a second"),
            mend,
        )
    } else if let Some((drive, scheduler)) = slow.filter(|_| is_nvme || !spins) {
        let name = &drive.name;
        Finding::warn(
            CHECK,
            format!("{whole}: {name} uses the scheduler {scheduler}, which slows a fast drive"),
            format!(
                "`echo none > /sys/block/{name}/queue/scheduler`; to keep it, in \
                 /etc/udev/rules.d/60-forebay.rules: ACTION==\"add|change\", KERNEL==\"{name}\", \
                 ATTR{{queue/scheduler}}=\"none\""
            ),
        )
    } else {
        let kind = match (spins, is_nvme) {
            (true, _) => "a spinning disk, as its class says",
            (_, true) => "an NVMe drive",
            _ if is_virtual => "a virtual disk; its medium is unknown",
            _ => "a solid-state disk",
        };
        Finding::ok(CHECK, format!("{whole}: {kind}"))
    };
    let rotational = (spins || !is_virtual).then_some(spins);
    finding.figure("device", device.name.as_str()).figure("rotational", rotational)
}

fn is_virtual(drive: &Device) -> bool {
    VIRTUAL.iter().any(|prefix| drive.name.starts_with(prefix))
        || read(&drive.directory.join("device/vendor"))
            .is_some_and(|vendor| VIRTUAL_VENDORS.contains(&vendor.as_str()))
}

/// Returns true for a real drive that the kernel reports as spinning.
fn spins(drive: &Device) -> bool {
    !is_virtual(drive) && read(&drive.directory.join("queue/rotational")).as_deref() == Some("1")
}

/// The scheduler of a drive that is better off without: NVMe ones sort requests by themselves, and
/// the fair one is too dear for any that does not spin.
fn slow_scheduler(drive: &Device) -> Option<String> {
    let text = read(&drive.directory.join("queue/scheduler"))?;
    let (_, rest) = text.split_once('[')?;
    let chosen = rest.split_once(']')?.0;
    let dear = match drive.name.starts_with("nvme") {
        true => chosen != "none",
        false => chosen == "bfq",
    };
    dear.then(|| chosen.to_owned())
}

/// The device of a file system: by its number, or, where that stands for no device (btrfs,
/// overlay), by what is mounted.
fn find(machine: &Machine, facts: &MountFacts) -> Option<Device> {
    let (major, minor) = facts.device;
    let by_number = machine.sys_path(format!("dev/block/{major}:{minor}"));
    let directory = fs::canonicalize(by_number).ok().or_else(|| {
        let source = Path::new(&facts.mount.as_ref()?.source);
        source.strip_prefix("/dev").ok()?;
        // Names of volumes are links to devices.
        let source = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
        fs::canonicalize(machine.sys_path("class/block").join(source.file_name()?)).ok()
    })?;
    whole(&directory)
}

/// The whole device that a partition is of.
fn whole(directory: &Path) -> Option<Device> {
    let directory = match directory.join("partition").exists() {
        true => directory.parent()?,
        false => directory,
    };
    let name = directory.file_name()?.to_string_lossy().into_owned();
    Some(Device { name, directory: directory.to_owned() })
}

/// The drives at the bottom of a stack.
fn drives(device: &Device, stack: u32) -> Vec<Device> {
    let slaves = fs::read_dir(device.directory.join("slaves")).into_iter().flatten().flatten();
    let below = slaves.filter_map(|slave| whole(&fs::canonicalize(slave.path()).ok()?));
    let mut found: Vec<Device> = match stack.checked_sub(1) {
        Some(stack) => below.flat_map(|part| drives(&part, stack)).collect(),
        None => Vec::new(),
    };
    if found.is_empty() {
        let (name, directory) = (device.name.clone(), device.directory.clone());
        found.push(Device { name, directory });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup_by(|a, b| a.name == b.name);
    found
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    /// A whole drive `name`, as device 259:1 if it is to be.
    fn drive(recorded: Recorded, name: &str, rotational: &str, scheduler: &str) -> Recorded {
        let at = format!("devices/{name}");
        recorded
            .sys(&format!("{at}/queue/rotational"), &format!("{rotational}\n"))
            .sys(&format!("{at}/queue/scheduler"), &format!("{scheduler}\n"))
            .sys(&format!("{at}/ro"), "0\n")
    }

    fn of(recorded: &Recorded, class: &str) -> Finding {
        let (plan, _folder) = test_plan(&format!(
            "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\nclass = '{class}'\n"
        ));
        check(&recorded.machine, &plan, 0, &MountFacts::sound())
    }

    fn single(name: &str, rotational: &str, scheduler: &str) -> Recorded {
        let recorded = drive(Recorded::new(), name, rotational, scheduler);
        recorded.link("dev/block/259:1", &format!("devices/{name}"))
    }

    #[test]
    fn drive_must_match_the_class_of_its_tier() {
        let nvme = single("nvme0n1", "0", "[none] mq-deadline");
        assert!(of(&nvme, "nvme").found.contains("an NVMe drive"));
        let hdd = single("sda", "1", "none [mq-deadline]");
        assert_eq!(of(&hdd, "hdd").verdict, Verdict::Ok);
        let spins = of(&hdd, "nvme");
        assert_eq!(spins.verdict, Verdict::Warn);
        assert!(spins.mend.as_deref().unwrap().contains("forebay.toml:5"), "{spins:?}");
        assert_eq!(of(&single("sda", "0", "none [mq-deadline]"), "ssd").verdict, Verdict::Ok);
    }

    /// A hypervisor or a loop device reports any disk as spinning.
    #[test]
    fn medium_of_a_virtual_disk_is_unknown() {
        let scsi = |vendor: &str| {
            single("sda", "1", "none [mq-deadline]").sys("devices/sda/device/vendor", vendor)
        };
        let scheduler = "none [mq-deadline]";
        let [vda, loop0] = ["vda", "loop0"].map(|name| single(name, "1", scheduler));
        for recorded in [vda, loop0, scsi("QEMU    \n"), scsi("Google  \n")] {
            for class in ["nvme", "ssd", "hdd"] {
                let finding = of(&recorded, class);
                assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
                assert!(finding.figures["rotational"].is_null(), "{finding:?}");
            }
        }
        let real = of(&scsi("ATA     \n"), "nvme");
        assert_eq!((real.verdict, &real.figures["rotational"]), (Verdict::Warn, &true.into()));
        // A file system on a loop device over a volume.
        let stacked = drive(Recorded::new(), "loop1", "1", scheduler)
            .sys("devices/dm-0/ro", "0\n")
            .link("devices/dm-0/slaves/loop1", "devices/loop1")
            .link("dev/block/259:1", "devices/dm-0");
        assert_eq!(of(&stacked, "nvme").verdict, Verdict::Ok);
    }

    #[test]
    fn scheduler_on_a_fast_drive_is_a_warning() {
        let sorted = of(&single("nvme0n1", "0", "none [mq-deadline] kyber"), "nvme");
        assert_eq!(sorted.verdict, Verdict::Warn);
        assert!(sorted.mend.unwrap().contains("/sys/block/nvme0n1/queue/scheduler"));
        assert_eq!(of(&single("sda", "0", "none [bfq]"), "ssd").verdict, Verdict::Warn);
        assert_eq!(of(&single("sda", "1", "none [bfq]"), "hdd").verdict, Verdict::Ok);
    }

    #[test]
    fn stacked_devices_are_resolved_to_drives() {
        let recorded = drive(Recorded::new(), "nvme0n1", "0", "[none]");
        let recorded = drive(recorded, "nvme1n1", "0", "none [bfq]")
            .sys("devices/nvme1n1/nvme1n1p1/partition", "1\n")
            .sys("devices/md0/ro", "0\n")
            .link("devices/md0/slaves/nvme0n1", "devices/nvme0n1")
            .link("devices/md0/slaves/nvme1n1p1", "devices/nvme1n1/nvme1n1p1")
            .link("dev/block/259:1", "devices/md0");
        let finding = of(&recorded, "nvme");
        assert!(finding.found.starts_with("md0 of nvme0n1 and nvme1n1: nvme1n1"), "{finding:?}");
        // One made of itself ends somewhere.
        let round = Recorded::new()
            .sys("devices/dm-0/ro", "0\n")
            .link("devices/dm-0/slaves/dm-0", "devices/dm-0")
            .link("dev/block/259:1", "devices/dm-0");
        assert_eq!(of(&round, "nvme").verdict, Verdict::Ok);
    }

    #[test]
    fn device_is_also_found_by_its_mount_source() {
        let recorded = drive(Recorded::new(), "nvme0n1", "0", "[none]")
            .sys("devices/nvme0n1/nvme0n1p1/partition", "1\n")
            .link("class/block/nvme0n1p1", "devices/nvme0n1/nvme0n1p1");
        assert_eq!(of(&recorded, "nvme").figures["device"], "nvme0n1");
    }

    #[test]
    fn read_only_drive_is_wrong_and_missing_device_is_skipped() {
        let recorded = single("nvme0n1", "0", "[none]").sys("devices/nvme0n1/ro", "1\n");
        let finding = of(&recorded, "nvme");
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("blockdev --setrw"));
        assert_eq!(of(&Recorded::new(), "nvme").verdict, Verdict::Skipped);
        assert_eq!(of(&single("zram0", "0", "none"), "nvme").verdict, Verdict::Warn);
    }
}
