//! Queues on a Redis (or Valkey) server, for jobs whose ranks are on several nodes.
//!
//! The server knows nothing of queues. It holds one as text, and takes another text for
//! it only from whoever knew the one it has; so the queue's own code makes every change, here as in
//! a daemon's memory. Beside it lies the log as a stream: by that, whoever waits hears of changes.

use std::time::Duration;

use async_trait::async_trait;
use forebay_engine::lease::{Change, Leases, Name, Queue};
use forebay_error::{Error, ErrorKind, Result};
use forebay_redis::{PATIENCE, Server};
use redis::{RedisResult, Script, cmd};

/// A member whose daemon is silent for this long is removed: long beside the pauses of a
/// busy node or network, short beside an epoch.
const BELIEVED: Duration = Duration::from_secs(20);

/// Time an idle queue is kept, in milliseconds: a day, within which a job is restarted.
const KEPT_MS: u64 = 24 * 3600 * 1000;

/// Entries of the log that are kept for people who look, and for those who wait.
const ENTRIES_KEPT: usize = 1000;

/// Attempts to make a change that others come before: someone of them gets on with each, so that is
/// as many ranks as may meet at once.
const ATTEMPTS: usize = 1000;

/// The queue, the last entry of its log, and the server's time in milliseconds.
const READ: &str = r"
local t = redis.call('TIME')
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {redis.call('GET', KEYS[1]) or '', last[1] and last[1][1] or '0-0',
  t[1] * 1000 + math.floor(t[2] / 1000)}
";

/// Another queue for the one that was read, with the entries between the two; 0 if it is not that
/// one.
const WRITE: &str = r"
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
for i = 5, #ARGV do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'entry', ARGV[i])
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
";

pub(super) struct Redis {
    server: Server,
    read: Script,
    write: Script,
}

impl Redis {
    /// A server that is asked when it is needed.
    pub(super) fn new(url: &str) -> Result<Self> {
        let server = Server::new(url)?;
        Ok(Self { server, read: Script::new(READ), write: Script::new(WRITE) })
    }

    fn keys(name: &Name) -> [String; 2] {
        // The text in braces selects the server of a cluster.
        [format!("forebay:{{{name}}}:queue"), format!("forebay:{{{name}}}:log")]
    }

    async fn read(&self, [queue, log]: &[String; 2]) -> RedisResult<(String, String, u64)> {
        self.read.key(queue).key(log).invoke_async(&mut self.server.connection()).await
    }

    fn parse(&self, text: &str) -> Result<Option<Queue>> {
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(text).map(Some).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("the queue on the server is invalid: {error}"))
                .at("redis", self.server.address())
                .advise("install one release of Forebay on all nodes")
        })
    }
}

#[async_trait]
impl Leases for Redis {
    async fn change(&self, name: &Name, change: &mut Change<'_>) -> Result<()> {
        let keys = Self::keys(name);
        for _ in 0..ATTEMPTS {
            let read = self.read(&keys).await;
            let (before, _, now) = read.map_err(|error| self.server.failed(&error))?;
            let mut queue = self.parse(&before)?;
            change(&mut queue, now)?;
            let Some(mut queue) = queue else { return Ok(()) };
            let entries = queue.entries();
            let after = serde_json::to_string(&queue).expect("numbers and strings always encode");
            if after == before {
                return Ok(());
            }
            let [queue, log] = &keys;
            let mut write = self.write.key(queue);
            write.key(log).arg(before).arg(after).arg(KEPT_MS).arg(ENTRIES_KEPT);
            for entry in entries {
                write.arg(serde_json::to_string(&entry).expect("it encodes"));
            }
            let written: RedisResult<bool> =
                write.invoke_async(&mut self.server.connection()).await;
            if written.map_err(|error| self.server.failed(&error))? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "too many ranks change one queue at once")
            .at("redis", self.server.address())
            .at("attempts", ATTEMPTS))
    }

    async fn changed(&self, name: &Name, position: u64) -> Result<()> {
        let keys = Self::keys(name);
        let read = self.read(&keys).await;
        let (queue, last, now) = read.map_err(|error| self.server.failed(&error))?;
        let Some(queue) = self.parse(&queue)?.filter(|queue| queue.position() == position) else {
            return Ok(());
        };
        // A member that dies with its daemon is detected when its lease expires.
        let until =
            queue.expiry().map_or(BELIEVED, |at| Duration::from_millis(at.saturating_sub(now)));
        // At least one, for 0 would be for ever.
        let wait = until.min(BELIEVED).as_millis().max(1);
        let heard: RedisResult<redis::Value> = async {
            let mut connection = self.server.connect(BELIEVED + PATIENCE).await?;
            let wait = u64::try_from(wait).unwrap_or(u64::MAX);
            let mut ask = cmd("XREAD");
            ask.arg("BLOCK").arg(wait).arg("COUNT").arg(1).arg("STREAMS").arg(&keys[1]).arg(last);
            ask.query_async(&mut connection).await
        }
        .await;
        heard.map(drop).map_err(|error| self.server.failed(&error))
    }

    fn believes(&self) -> Option<Duration> {
        Some(BELIEVED)
    }

    fn is_near(&self) -> bool {
        false
    }
}
