//! Users and groups as admins write them: by name, or by number.
//!
//! A name is looked up when the file is read, and never again; a number that stands for
//! everybody whom this machine does not know is nobody's.

use std::fmt;

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use crate::settings::overflow;

/// A name or a number.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Account {
    /// As the node's user database has it.
    Name(String),
    /// As the kernel does.
    Number(u32),
}

/// A group, by its name or its gid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group(Account);

/// A user, by name or by uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User(Account);

impl Account {
    fn read<'de, D: Deserializer<'de>>(from: D, expected: &'static str) -> Result<Self, D::Error> {
        struct Visitor(&'static str);
        impl de::Visitor<'_> for Visitor {
            type Value = Account;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Account, E> {
                Ok(text.parse().map_or_else(|_| Account::Name(text.to_owned()), Account::Number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Account, E> {
                let wrong = |_| E::invalid_value(de::Unexpected::Signed(number), &self);
                u32::try_from(number).map(Account::Number).map_err(wrong)
            }
        }
        from.deserialize_any(Visitor(expected))
    }

    fn shown(&self) -> Value {
        match self {
            Self::Name(name) => json!(name),
            Self::Number(number) => json!(number),
        }
    }

    /// Returns the number, unless it is the kernel's stand-in for unknown ones.
    fn number(
        &self,
        noun: &str,
        overflow: u32,
        look_up: impl Fn(&str) -> nix::Result<Option<u32>>,
    ) -> Result<u32> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Name(name) => {
                let found = look_up(name).map_err(std::io::Error::from);
                let found =
                    found.doing("look an account up").map_err(|error| error.at(noun, name))?;
                found.ok_or_else(|| {
                    Error::new(ErrorKind::Invalid, format!("there is no {noun} with this name"))
                        .at(noun, name)
                })?
            }
        };
        if number == overflow {
            let what = format!("this {noun} is the kernel's stand-in for unknown ones");
            let error = Error::new(ErrorKind::Invalid, what).at(noun, self.shown());
            return Err(error.advise(format!("name a {noun} of its own")));
        }
        Ok(number)
    }
}

impl Group {
    /// Returns the current group id; the kernel knows the members.
    pub(super) fn gid(&self) -> Result<u32> {
        let look_up = |name: &str| {
            let found = nix::unistd::Group::from_name(name)?;
            Ok(found.map(|group| group.gid.as_raw()))
        };
        self.0.number("group", overflow(1), look_up).map_err(|error| match error.advice() {
            Some(_) => error,
            None => {
                error.advise("see `getent group`: create it, correct its name, or give its gid")
            }
        })
    }

    pub(super) fn shown(&self) -> Value {
        self.0.shown()
    }
}

impl User {
    /// Returns the current user id.
    pub(super) fn uid(&self) -> Result<u32> {
        let look_up = |name: &str| {
            let found = nix::unistd::User::from_name(name)?;
            Ok(found.map(|user| user.uid.as_raw()))
        };
        self.0.number("user", overflow(0), look_up).map_err(|error| match error.advice() {
            Some(_) => error,
            None => {
                error.advise("see `getent passwd`: create it, correct its name, or give its uid")
            }
        })
    }

    pub(super) fn shown(&self) -> Value {
        self.0.shown()
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Account::read(from, "a group's name or its gid").map(Self)
    }
}

impl<'de> Deserialize<'de> for User {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Account::read(from, "a user's name or uid").map(Self)
    }
}
