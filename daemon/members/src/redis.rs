//! A member list on a Redis or Valkey server: one sorted set for each group, scored by the
//! server's time, so that clocks of nodes do not count.
//!
//! Each node writes its own entry and removes the expired ones of all. Entries that expire while
//! the server is away say nothing about their nodes. So after a gap, and after the server lost its
//! data or its clock was set, members that are missing stay in the list until each had time to
//! register again.

use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::{MAX_MEMBERS, Member};
use forebay_error::{Error, ErrorKind, Result};
use forebay_redis::{PATIENCE, Server};
use redis::Script;
use tokio::time::{Instant, timeout};

use super::source::{Answer, Source};

/// Interval at which a member registers.
const EVERY: Duration = Duration::from_secs(5);

/// A member that is silent for this long is none: three registrations may fail.
const BELIEVED: Duration = Duration::from_secs(20);

/// Difference between the server's clock and ours over one interval beyond which the server's was
/// set, or the server slept.
const DRIFT: Duration = Duration::from_secs(5);

/// Longest entry: a name and an address of 253 bytes each, and as much again.
const ENTRY_MOST: usize = 1024;

/// Readings after which the whole list is read even if its version is known: a minute, within which
/// the change of a person who edits the set counts.
const WHOLE_EVERY: u32 = 12;

/// Registers a member, and returns the list.
///
/// KEYS: the set, and its version. ARGV: own entry; 1 to register, 0 to leave; the version known;
/// milliseconds that an entry is believed; the most entries; the longest entry; further entries to
/// remove. The version lets thousands of nodes ask every few seconds: it is later than that of
/// every earlier change, and the list is sent only to those who do not know it.
const REGISTER: &str = r"
local set, version = KEYS[1], KEYS[2]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local had = redis.call('ZSCORE', set, ARGV[1]) and 1 or 0
local changes = redis.call('ZREMRANGEBYSCORE', set, '-inf', now - ARGV[4])
local ahead = redis.call('ZRANGEBYSCORE', set, '(' .. now, '+inf', 'LIMIT', 0, ARGV[5])
for _, entry in ipairs(ahead) do redis.call('ZADD', set, now, entry) end
for i = 7, #ARGV do changes = changes + redis.call('ZREM', set, ARGV[i]) end
if ARGV[2] == '1' then
  changes = changes + redis.call('ZADD', set, now, ARGV[1])
else
  changes = changes + redis.call('ZREM', set, ARGV[1])
end
local current = tonumber(redis.call('GET', version) or '')
if changes > 0 or not current then current = math.max((current or 0) + 1, now) end
redis.call('SET', version, string.format('%.0f', current), 'PX', ARGV[4])
redis.call('PEXPIRE', set, ARGV[4])
local is = string.format('%.0f:%d', current, redis.call('ZCARD', set))
local entries, long = {}, 0
if is ~= ARGV[3] then
  for _, entry in ipairs(redis.call('ZRANGE', set, 0, ARGV[5])) do
    if #entry <= tonumber(ARGV[6]) then entries[#entries + 1] = entry else long = long + 1 end
  end
end
return {had, now, is, long, entries}
";

/// A server where members register.
pub(super) struct Redis {
    server: Server,
    group: String,
    own: Member,
    /// Own entry.
    entry: String,
    register: Script,
    is_registered: bool,
    /// Entries under this node's name of a node that was there before, to be removed.
    replaced: Vec<Vec<u8>>,
    /// True once such entries were looked for: later ones are another node's.
    has_replaced: bool,
    /// Times of the last answer, of the server and of this node.
    last: Option<(u64, Instant)>,
    /// Members that are missing are kept until then.
    settles: Option<Instant>,
    /// Version of the entries that were read last, and those; empty: unknown.
    version: String,
    entries: Vec<Vec<u8>>,
    long: usize,
    /// Readings since all entries were read.
    readings: u32,
}

/// Had it this node's entry, its time, the version, entries that are too long, and the others.
type Reply = (bool, u64, String, usize, Vec<Vec<u8>>);

impl Redis {
    pub(super) fn new(url: &str, own: Member, group: &str) -> Result<Self> {
        let entry = serde_json::to_string(&own).expect("strings and numbers always encode");
        Ok(Self {
            server: Server::new(url)?,
            group: group.to_owned(),
            own,
            entry,
            register: Script::new(REGISTER),
            is_registered: true,
            replaced: Vec::new(),
            has_replaced: false,
            last: None,
            settles: None,
            version: String::new(),
            entries: Vec::new(),
            long: 0,
            readings: 0,
        })
    }

    async fn ask(&self) -> Result<Reply> {
        // The text in braces selects the server of a cluster.
        let key = |what: &str| format!("forebay:{{{}}}:{what}", self.group);
        let mut ask = self.register.key(key("members"));
        ask.key(key("members:version"));
        ask.arg(&self.entry).arg(u8::from(self.is_registered)).arg(&self.version);
        ask.arg(millis(BELIEVED)).arg(MAX_MEMBERS).arg(ENTRY_MOST);
        for entry in &self.replaced {
            ask.arg(entry);
        }
        let mut connection = self.server.connection();
        let asked = timeout(PATIENCE, ask.invoke_async(&mut connection)).await;
        let late = |_| {
            Error::new(ErrorKind::Unavailable, "the Redis server does not answer")
                .at("redis", self.server.address())
        };
        let failed = |error| self.server.failed(&error).at("key", key("members"));
        asked.map_err(late)?.map_err(failed)
    }

    /// Asks the server, and notes the answer.
    async fn exchange(&mut self) -> Result<()> {
        if self.readings.is_multiple_of(WHOLE_EVERY) {
            self.version.clear();
        }
        let asked = self.ask().await;
        let at = Instant::now();
        let (had_own, time, version, long, entries) = match asked {
            Ok(reply) => reply,
            Err(error) => {
                self.readings = 0;
                return Err(error);
            }
        };
        self.readings = self.readings.wrapping_add(1);
        self.replaced.clear();
        if version != self.version {
            (self.version, self.entries, self.long) = (version, entries, long);
        }
        let is_whole = had_own || !self.is_registered;
        if let Some((before, then)) = self.last.replace((time, at)) {
            let ours = at - then;
            let theirs = time.checked_sub(before).map(Duration::from_millis);
            let is_steady = theirs.is_some_and(|theirs| theirs.abs_diff(ours) < DRIFT);
            if !(is_whole && is_steady && ours < BELIEVED / 2) {
                self.settles = Some(at + BELIEVED);
            }
        }
        Ok(())
    }

    /// Members of the entries that were read last.
    fn answer(&self) -> Answer {
        let mut answer = Answer::default();
        for entry in &self.entries {
            let read = serde_json::from_slice::<Member>(entry).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("an entry is no member: {error}"))
            });
            match read.and_then(|member| member.check().map(|()| member)) {
                Ok(member) => answer.members.push(member),
                Err(error) => answer.leave_out(&error),
            }
        }
        if self.long > 0 {
            answer.leave_out(&"an entry is too long for a member");
            answer.left_out += self.long - 1;
        }
        answer
    }

    /// Removes entries of this node's earlier life, such as one with another address, from the
    /// first list. Two nodes of one name that live both stay: the second one registers again.
    fn replace(&mut self) {
        if std::mem::replace(&mut self.has_replaced, true) {
            return;
        }
        let is_earlier = |entry: &Vec<u8>| {
            let member = serde_json::from_slice::<Member>(entry);
            entry != self.entry.as_bytes() && member.is_ok_and(|one| one.name == self.own.name)
        };
        let (replaced, entries) = self.entries.drain(..).partition(is_earlier);
        (self.replaced, self.entries) = (replaced, entries);
    }
}

#[async_trait]
impl Source for Redis {
    async fn read(&mut self, known: &[Member]) -> Result<Answer> {
        self.exchange().await?;
        self.replace();
        if !self.replaced.is_empty() {
            self.exchange().await?;
        }
        let mut answer = self.answer();
        if self.settles.is_some_and(|until| Instant::now() < until) {
            let has = |member: &&Member| answer.members.iter().any(|one| one.name == member.name);
            let is_gone = |member: &Member| !self.is_registered && member.name == self.own.name;
            let stay: Vec<_> =
                known.iter().filter(|member| !has(member) && !is_gone(member)).cloned().collect();
            answer.members.extend(stay);
        }
        Ok(answer)
    }

    async fn leave(&mut self) -> Result<()> {
        self.is_registered = false;
        self.exchange().await
    }

    async fn join(&mut self) -> Result<()> {
        self.is_registered = true;
        self.exchange().await
    }

    fn interval(&self) -> Duration {
        EVERY
    }

    fn shown(&self) -> String {
        format!("redis {}", self.server.address())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
