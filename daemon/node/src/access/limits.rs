//! Limits on concurrent jobs and on opens per tenant, or per user without a tenant.
//!
//! A job over the limit is denied at once, with the time to retry after; no job waits in the
//! daemon.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_config::settings::TenantLimits;
use forebay_error::{Error, ErrorKind, Result};
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

/// Holders kept before idle ones are dropped: a node has tens of users and tenants.
const HOLDERS: usize = 1024;

/// A tenant or user whose jobs are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A tenant, however its clients came.
    Tenant(String),
    /// A user of none.
    User(u64),
}

type Limiter =
    RateLimiter<NotKeyed, InMemoryState, MonotonicClock, NoOpMiddleware<std::time::Instant>>;

/// Usage of one holder.
struct Held {
    sessions: u32,
    limits: TenantLimits,
    opens: Limiter,
}

impl Held {
    fn new(limits: TenantLimits) -> Self {
        let TenantLimits { sessions, opens } = limits;
        // One each such a part of the time, of which as many may come at once as may be there at
        // once.
        let each = opens.per / opens.count.get();
        let quota = Quota::with_period(each).unwrap_or(Quota::per_second(opens.count));
        let burst = NonZeroU32::new(sessions).unwrap_or(NonZeroU32::MIN).max(opens.count);
        let opens = RateLimiter::direct_with_clock(quota.allow_burst(burst), MonotonicClock);
        Self { sessions: 0, limits, opens }
    }
}

/// Usage of all holders. Outlives changes of the limits.
#[derive(Default)]
pub struct Usage(Arc<Mutex<HashMap<Holder, Held>>>);

/// The right to have one job, until dropped.
pub struct SessionPermit {
    usage: Arc<Mutex<HashMap<Holder, Held>>>,
    holder: Holder,
}

impl Usage {
    /// Counts one more job.
    ///
    /// # Errors
    /// `Unavailable` naming the limit that it is over.
    pub fn open(&self, holder: Holder, limits: TenantLimits) -> Result<SessionPermit> {
        let mut all = lock(&self.0);
        if all.len() >= HOLDERS && !all.contains_key(&holder) {
            all.retain(|_, held| held.sessions > 0);
        }
        let held = all.entry(holder.clone()).or_insert_with(|| Held::new(limits));
        if held.limits != limits {
            *held = Held { sessions: held.sessions, ..Held::new(limits) };
        }
        let over = |what: &str| {
            let error = Error::new(ErrorKind::Unavailable, what.to_owned());
            match &holder {
                Holder::Tenant(name) => error.at("tenant", name),
                Holder::User(_) => error,
            }
        };
        if held.sessions >= limits.sessions {
            return Err(over("the limit on concurrent jobs is reached")
                .at("sessions", limits.sessions)
                .advise(match &holder {
                    Holder::Tenant(_) => {
                        "retry when one has ended, or ask an admin to raise `sessions` of the \
                         [[tenant]]"
                    }
                    Holder::User(_) => {
                        "retry when one has ended, or ask an admin to raise \
                         `max_sessions_per_user` of [daemon]"
                    }
                }));
        }
        if let Err(early) = held.opens.check() {
            let wait = early.wait_time_from(MonotonicClock.now());
            return Err(over("the limit on opens per time is reached")
                .at("opens", limits.opens)
                .at("again_in_ms", wait.as_millis() + 1)
                .advise("retry then, or ask an admin to raise `opens` of the [[tenant]]"));
        }
        held.sessions += 1;
        Ok(SessionPermit { usage: self.0.clone(), holder })
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        if let Some(held) = lock(&self.usage).get_mut(&self.holder) {
            held.sessions -= 1;
        }
    }
}

fn lock(all: &Mutex<HashMap<Holder, Held>>) -> MutexGuard<'_, HashMap<Holder, Held>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_config::settings::Opens;

    use super::*;

    /// One an hour: none comes back while a test runs.
    fn limits(sessions: u32, opens: u32) -> TenantLimits {
        let count = NonZeroU32::new(opens).unwrap();
        TenantLimits { sessions, opens: Opens { count, per: Duration::from_secs(3600) } }
    }

    fn tenant(name: &str) -> Holder {
        Holder::Tenant(name.to_owned())
    }

    #[test]
    fn each_holder_has_its_own_sessions_and_frees_them() {
        let usage = Usage::default();
        let open = |holder| usage.open(holder, limits(2, 100));
        let first = open(tenant("a")).unwrap();
        let _second = open(tenant("a")).unwrap();
        let error = open(tenant("a")).err().unwrap();
        assert_eq!((error.kind(), error.place("tenant")), (ErrorKind::Unavailable, Some("a")));
        assert_eq!(error.place("sessions"), Some("2"));
        let _others = (open(tenant("b")).unwrap(), open(Holder::User(1)).unwrap());
        drop(first);
        let _third = open(tenant("a")).unwrap();
        assert!(open(tenant("a")).is_err());
    }

    #[test]
    fn repeated_opens_are_rate_limited() {
        let usage = Usage::default();
        for _ in 0..3 {
            usage.open(tenant("a"), limits(2, 3)).unwrap();
        }
        let error = usage.open(tenant("a"), limits(2, 3)).err().unwrap();
        assert_eq!((error.kind(), error.place("opens")), (ErrorKind::Unavailable, Some("3/h")));
        let wait: u64 = error.place("again_in_ms").unwrap().parse().unwrap();
        assert!((1_000_000..=1_200_001).contains(&wait), "{wait}");
        // As the limit is raised.
        usage.open(tenant("a"), limits(2, 4)).unwrap();
    }

    #[test]
    fn open_sessions_survive_a_change_of_the_limit() {
        let usage = Usage::default();
        let _held = [(); 3].map(|()| usage.open(tenant("a"), limits(3, 100)).unwrap());
        assert!(usage.open(tenant("a"), limits(2, 100)).is_err());
        assert!(usage.open(tenant("a"), limits(4, 100)).is_ok());
    }

    #[test]
    fn holders_without_sessions_are_dropped() {
        let usage = Usage::default();
        let _kept = usage.open(Holder::User(0), limits(2, 9)).unwrap();
        for uid in 1..=10 * HOLDERS as u64 {
            usage.open(Holder::User(uid), limits(2, 9)).unwrap();
        }
        assert!(lock(&usage.0).len() <= HOLDERS);
        assert_eq!(lock(&usage.0)[&Holder::User(0)].sessions, 1);
    }
}
