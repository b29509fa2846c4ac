//! `[[checkpoint]]`: who may write checkpoints where, and the room and bandwidth they may take.

use bytesize::ByteSize;
use forebay_checkpoint::Keep as Kept;
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_store::{CheckpointRule, Class};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Allow, Config, Rate, Tier, check, schema};
use crate::settings::Writers;

/// `[[checkpoint]]`: rules for checkpoints that match, and who may write them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// URLs of its checkpoints; `*` stays within a folder, `**` crosses them.
    pub r#match: String,
    /// Users and groups that may write them; none: admins only.
    pub allow: Option<Allow>,
    /// Bytes of the tiers that belong to checkpoints: shards give way to them.
    #[serde(default)]
    #[schemars(with = "schema::Size")]
    pub reserve: ByteSize,
    /// Bytes that they hold on the tiers, at most.
    #[schemars(with = "Option<schema::Size>")]
    pub max: Option<ByteSize>,
    /// The tiers they may lie on, all of them disks; none named: any disk.
    #[serde(default)]
    pub tiers: Vec<String>,
    /// Bytes a second that their uploads send, at most.
    pub upload_bandwidth: Option<Rate>,
    /// Published checkpoints that stay at their origin; none: nothing is ever deleted there.
    pub keep: Option<Keep>,
}

/// `keep = { last, every }`: published checkpoints that stay; older ones are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// The newest ones, so many.
    #[schemars(range(min = 1))]
    pub last: u32,
    /// Each whose step is a multiple of this.
    #[schemars(range(min = 1))]
    pub every: Option<u64>,
}

impl Checkpoint {
    /// The rule as the store applies it, on these tiers.
    pub(super) fn rule(&self, tiers: &[Tier]) -> Result<CheckpointRule> {
        let rule = CheckpointRule::new(&self.r#match)?;
        let at = |error: Error| error.at("match", shown(&self.r#match));
        let is_memory = |name: &&String| {
            tiers.iter().any(|tier| tier.name == **name && tier.class == Class::Memory)
        };
        if let Some(memory) = self.tiers.iter().find(is_memory) {
            let what =
                "`tiers` of a checkpoint rule names memory, which does not survive a power cut";
            let error = Error::new(ErrorKind::Invalid, what).at("tier", memory);
            return Err(at(error).advise("name tiers with a path"));
        }
        if rule.is_of_paths() && self.allow.is_some() {
            let what = "`allow` does not apply to paths: the daemon writes them by its own rights";
            let advice = "leave `allow` out, or let its users write to an object store";
            return Err(at(Error::new(ErrorKind::Invalid, what)).advise(advice));
        }
        let disks = tiers.iter().filter(|tier| tier.class != Class::Memory);
        let keep = self.keep.map(|Keep { last, every }| Kept::new(last, every));
        let rule = CheckpointRule {
            reserve_bytes: self.reserve.as_u64(),
            max_bytes: self.max.map(|max| max.as_u64()),
            tiers: match self.tiers.is_empty() {
                true => disks.map(|tier| tier.name.clone()).collect(),
                false => self.tiers.clone(),
            },
            upload_bandwidth: self.upload_bandwidth.map(Rate::bytes),
            keep: keep.transpose().map_err(at)?,
            ..rule
        };
        rule.check()?;
        Ok(rule)
    }
}

impl Config {
    /// The checkpoints' rules, in order.
    ///
    /// # Errors
    /// `Invalid` naming the rule that contradicts itself, or can never match.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointRule>> {
        let mut rules = Vec::with_capacity(self.checkpoint.len());
        for checkpoint in &self.checkpoint {
            let rule = checkpoint.rule(&self.tier)?;
            check::checkpoint_after(&rules, &rule)?;
            rules.push(rule);
        }
        Ok(rules)
    }

    /// The writers of checkpoints, in the order of the rules.
    pub(super) fn writers(&self) -> Result<Vec<Writers>> {
        let rules = self.checkpoint.iter().zip(self.checkpoints()?);
        let writers = |(checkpoint, rule): (&Checkpoint, CheckpointRule)| {
            let allow = checkpoint.allow.as_ref().map(Allow::resolved).transpose();
            let allow = allow.map_err(|error| error.at("match", shown(&checkpoint.r#match)))?;
            Ok(Writers { rule, allow })
        };
        rules.map(writers).collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    const TIERS: &str = "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n\
                         [[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n\
                         [[tier]]\nname = 'hdd'\nclass = 'hdd'\npath = '/h'\ncapacity = '4GiB'\n";

    const RUNS: &str = "[[checkpoint]]\nmatch = 's3://runs/**'\n";

    fn read(text: &str) -> Config {
        Config::parse(&format!("{TIERS}{text}")).unwrap()
    }

    /// Mistakes of a file, checks of promises included.
    fn mistakes(text: &str) -> Vec<Error> {
        let bytes = format!("{TIERS}{text}").into_bytes();
        let mistakes = Config::judge("forebay.toml".as_ref(), bytes).err().unwrap_or_default();
        mistakes.iter().map(|mistake| mistake.located(None)).collect()
    }

    #[test]
    fn checkpoint_rules_are_read_with_their_defaults() {
        let config = read(RUNS);
        let rules = config.checkpoints().unwrap();
        let rule = &rules[0];
        assert!(rule.has("s3://runs/a/step-1") && !rule.has("s3://other/a"));
        assert_eq!((rule.reserve_bytes, rule.max_bytes), (0, None));
        assert_eq!(rule.tiers, ["nvme", "hdd"], "memory is no place for checkpoints");
        assert_eq!((rule.upload_bandwidth, rule.keep), (None, None));
        let writers = config.access().unwrap().writers;
        assert_eq!((&writers[0].rule, &writers[0].allow), (rule, &None));
        assert!(read("").checkpoints().unwrap().is_empty());
    }

    #[test]
    fn every_key_of_a_checkpoint_rule_is_read() {
        let config = read(&format!(
            "[[tenant]]\nname = 'vision'\ngroups = [7]\n{RUNS}\
             allow = {{ users = ['root'], groups = [7], tenants = ['vision'] }}\n\
             reserve = '100MiB'\nmax = '1GiB'\ntiers = ['hdd']\nupload_bandwidth = '5Gbit/s'\n\
             keep = {{ last = 5, every = 10000 }}\n\
             [[checkpoint]]\nmatch = '**'\nkeep = {{ last = 1 }}\n"
        ));
        let rules = config.checkpoints().unwrap();
        let rule = &rules[0];
        assert_eq!((rule.reserve_bytes, rule.max_bytes), (100 << 20, Some(1 << 30)));
        assert_eq!((rule.tiers[0].as_str(), rule.upload_bandwidth), ("hdd", Some(625_000_000)));
        let keep = |at: usize| rules[at].keep.map(|keep: Kept| (keep.last(), keep.every()));
        assert_eq!((keep(0), keep(1)), (Some((5, Some(10_000))), Some((1, None))));
        let writers = config.access().unwrap().writers;
        let allow = writers[0].allow.as_ref().unwrap();
        assert_eq!((&allow.users[..], &allow.groups[..]), (&[0][..], &[7][..]));
        assert_eq!(allow.tenants, ["vision"]);
        assert_eq!(writers[1].allow, None);
    }

    /// Lines count from the file's start: the table begins in line 14.
    #[test]
    fn mistakes_of_checkpoint_rules_are_reported_with_their_line() {
        let with = |key: &str| format!("{RUNS}{key}\n");
        let at = |matches: &str| RUNS.replace("s3://runs/**", matches);
        for (text, line, place) in [
            ("[[checkpoint]]\nreserve = '1GiB'\n".to_owned(), "14", None),
            (with("colour = 'red'"), "16", Some(("match", "s3://runs/**"))),
            (with("reserve = 'much'"), "16", Some(("match", "s3://runs/**"))),
            (with("reserve = '2GiB'\nmax = '1GiB'"), "16", Some(("match", "s3://runs/**"))),
            (with("tiers = ['nvme', 'tape']"), "16", Some(("tier", "tape"))),
            (with("tiers = ['ram']"), "16", Some(("tier", "ram"))),
            (with("upload_bandwidth = '10'"), "16", None),
            (with("keep = { last = 0 }"), "16", Some(("keep", "last"))),
            (with("keep = { last = 1, every = 0 }"), "16", Some(("keep", "every"))),
            (with("keep = { every = 5 }"), "16", None),
            (with("keep = { last = -1 }"), "16", None),
            (with("allow = {}"), "16", Some(("match", "s3://runs/**"))),
            (
                with("allow = { groups = ['no-such-group'] }"),
                "16",
                Some(("group", "no-such-group")),
            ),
            (with("allow = { tenants = ['nobody'] }"), "16", Some(("tenant", "nobody"))),
            (at("http://host/**"), "15", Some(("match", "http://host/**"))),
            (at("https://host/**"), "15", Some(("match", "https://host/**"))),
            (at("hf://datasets/a/b/**"), "15", Some(("match", "hf://datasets/a/b/**"))),
            (at("runs/**"), "15", Some(("match", "runs/**"))),
            (at("s3://runs/"), "15", Some(("match", "s3://runs/"))),
            (at("gcs://runs/**"), "15", Some(("match", "gcs://runs/**"))),
            (at("s3://[runs"), "15", Some(("match", "s3://[runs"))),
            (format!("{}allow = {{ users = [7] }}\n", at("/d/**")), "16", Some(("match", "/d/**"))),
            (format!("{RUNS}{RUNS}"), "17", Some(("shadowed_by", "s3://runs/**"))),
            (format!("{}{RUNS}", at("**")), "17", Some(("shadowed_by", "**"))),
        ] {
            let errors = mistakes(&text);
            assert_eq!(errors.len(), 1, "{text}: {errors:?}");
            let error = &errors[0];
            assert_eq!(
                (error.kind(), error.place("line")),
                (ErrorKind::Invalid, Some(line)),
                "{error}"
            );
            if let Some((name, value)) = place {
                assert_eq!(error.place(name), Some(value), "{error}");
            }
        }
        for right in [at("/d/**"), at("**"), with("tiers = ['nvme', 'hdd']"), with("max = '9TiB'")]
        {
            assert!(mistakes(&right).is_empty(), "{right}");
        }
    }

    #[test]
    fn reserves_must_fit_the_tiers() {
        let other = "[[checkpoint]]\nmatch = 's3://other/**'\n";
        let set = "[[dataset]]\nname = 'a'\nmatch = '**'\nquota = { min = '2GiB' }\n";
        for (text, promised) in [
            (format!("{RUNS}reserve = '3GiB'\n{other}reserve = '2GiB'\n"), None),
            (format!("{RUNS}reserve = '4GiB'\n{other}reserve = '2GiB'\n"), Some(6_u64 << 30)),
            (format!("{RUNS}reserve = '2GiB'\ntiers = ['nvme']\n"), Some(2 << 30)),
            (format!("{RUNS}reserve = '4GiB'\n{set}"), None),
            (format!("{RUNS}reserve = '5GiB'\n{set}"), Some(7 << 30)),
        ] {
            let errors = mistakes(&text);
            let found = errors.first().map(|error| error.place("promised").map(str::to_owned));
            let wanted = promised.map(|promised| Some(promised.to_string()));
            assert_eq!(found, wanted, "{text}: {errors:?}");
        }
    }

    #[test]
    fn node_of_memory_alone_takes_no_checkpoint_rule() {
        let tier = "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n";
        let error = Config::parse(&format!("{tier}{RUNS}")).unwrap_err();
        assert_eq!((error.kind(), error.place("line")), (ErrorKind::Invalid, Some("5")));
    }

    /// Mistakes of the tiers are reported once, not again as mistakes of the rule.
    #[test]
    fn unreadable_tiers_cause_no_mistakes_of_rules() {
        for tier in ["", "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = 'x'\n"] {
            let text = format!("{tier}{RUNS}tiers = ['nvme']\n");
            let mistakes = Config::judge("f.toml".as_ref(), text.into_bytes()).unwrap_err();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        }
    }
}
