//! Programs that the daemon starts: its readers and credential chains, and the programs that AWS
//! profiles name for credentials.
//!
//! Their paths are checked for the daemon's user; nothing is started.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use forebay_error::Error;
use forebay_source::{ProgramUser, check_helper_process};

use super::finding::{Finding, listed};
use super::plan::{Plan, advice, without_advice};
use crate::Launcher;

const CHECK: &str = "programs";

/// The profile that AWS tools take without another.
const DEFAULT: &str = "default";

/// Files of AWS profiles: the variable that names each, and its place below the home directory.
const PROFILES: [(&str, &str); 2] =
    [("AWS_CONFIG_FILE", ".aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")];

/// A program for credentials, and the profile that names it.
struct Credentials {
    profile: String,
    program: OsString,
}

/// Checks the programs of the daemon that `launcher` starts, for `user`, or for this one.
pub(super) fn check(plan: &Plan, launcher: &Launcher, user: Option<&ProgramUser>) -> Finding {
    let credentials = credentials(&wanted(plan));
    let lines = [crate::reader::command(launcher), crate::credentials::command(launcher)];
    let refused = lines.iter().find_map(|line| check_helper_process(line, user).err());
    if let Some(error) = refused {
        return wrong(&error);
    }
    for Credentials { profile, program } in &credentials {
        if let Err(error) = check_helper_process(std::slice::from_ref(program), user) {
            return wrong(&error.at("profile", profile));
        }
    }
    let programs = lines.iter().filter_map(|line| line.first());
    let programs = programs.chain(credentials.iter().map(|credentials| &credentials.program));
    let programs: BTreeSet<_> = programs.map(|name| name.to_string_lossy().into_owned()).collect();
    let named = listed(&programs.into_iter().collect::<Vec<_>>());
    Finding::ok(CHECK, format!("the daemon's user may start {named}"))
}

fn wrong(error: &Error) -> Finding {
    let mend = advice(error, "install the program where the daemon's user may execute it");
    Finding::wrong(CHECK, without_advice(error), mend)
}

/// Returns the profiles that the daemon takes credentials from.
fn wanted(plan: &Plan) -> BTreeSet<String> {
    let rules = plan.config().into_iter().flat_map(|config| &config.source);
    let mut wanted: BTreeSet<_> = rules.filter_map(|rule| rule.profile.clone()).collect();
    wanted.insert(env::var("AWS_PROFILE").unwrap_or_else(|_| DEFAULT.to_owned()));
    wanted
}

/// Returns the programs that these profiles name.
fn credentials(wanted: &BTreeSet<String>) -> Vec<Credentials> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let files = PROFILES.into_iter().filter_map(|(variable, below)| {
        let named = env::var_os(variable).map(PathBuf::from);
        named.or_else(|| home.as_ref().map(|home| home.join(below)))
    });
    // A file that cannot be read names nothing; the daemon's own errors tell of it.
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts.flat_map(|text| programs_of(&text, wanted)).collect()
}

/// Returns the programs of a file of profiles.
fn programs_of(text: &str, wanted: &BTreeSet<String>) -> Vec<Credentials> {
    let (mut profile, mut found) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix('[') {
            let name = section.split(']').next().unwrap_or_default().trim();
            name.strip_prefix("profile ").unwrap_or(name).trim().clone_into(&mut profile);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        if key.trim() == "credential_process" && wanted.contains(&profile) {
            let program = first_word(value.trim()).into();
            found.push(Credentials { profile: profile.clone(), program });
        }
    }
    found
}

/// Returns the program of a command line, which quotes may hold together.
fn first_word(line: &str) -> &str {
    match line.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => line.split_whitespace().next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_wanted_profiles_are_found() {
        let text = "[default]\nregion = x\n[profile ml]\ncredential_process = \"/opt/a b/keys\" --x\n\
                    [profile other]\ncredential_process=/no\n[plain]\ncredential_process=/p q\n";
        let wanted = BTreeSet::from(["ml".to_owned(), "plain".to_owned()]);
        let found = programs_of(text, &wanted);
        let found: Vec<_> =
            found.iter().map(|one| (&*one.profile, one.program.to_str().unwrap())).collect();
        assert_eq!(found, [("ml", "/opt/a b/keys"), ("plain", "/p")]);
    }
}
