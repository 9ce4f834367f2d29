//! When the reactor turns and how long it may wait for its network: the decisions around each wait, without the waiting.
//!
//! Invariant: it waits without end only when nothing is left to do, no deadline runs, and its doorbell has been told.

use std::time::Duration;

use super::{Network, Reactor, Rest};
use crate::ring::Doorbell;

/// The reactor's thread between two turns.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rest: Rest,
    /// How long to look for work before sleeping, and until when that is.
    spin_ns: u64,
    busy_until_ns: u64,
}

impl Pace {
    /// Makes the first turn.
    pub fn begin<N: Network>(reactor: &mut Reactor<N>, now_ns: u64, spin_ns: u64) -> Pace {
        Pace { rest: reactor.turn(now_ns), spin_ns, busy_until_ns: 0 }
    }

    /// How long to wait for the network at most; `None` without end. Afterwards [`Doorbell::awake`], then the events, then
    /// [`Pace::woken`].
    pub fn timeout<N: Network>(&self, reactor: &Reactor<N>, bell: &Doorbell, now_ns: u64) -> Option<Duration> {
        let sleeps = !self.rest.again && now_ns >= self.busy_until_ns && bell.may_sleep(|| reactor.has_work());
        match self.rest.wake_at_ns {
            _ if !sleeps => Some(Duration::ZERO),
            // Rounded up, as the poll's own clock has milliseconds and would wake just before the deadline.
            Some(wake_at_ns) => Some(Duration::from_millis(wake_at_ns.saturating_sub(now_ns).div_ceil(1_000_000))),
            None => None,
        }
    }

    /// After the wait: turns if there is a reason to. `any`: there were events.
    pub fn woken<N: Network>(&mut self, reactor: &mut Reactor<N>, any: bool, now_ns: u64) {
        let worked = any || self.rest.again || reactor.has_work();
        if worked || self.rest.wake_at_ns.is_some_and(|wake_at_ns| wake_at_ns <= now_ns) {
            self.rest = reactor.turn(now_ns);
        }
        if worked && self.spin_ns > 0 {
            self.busy_until_ns = now_ns + self.spin_ns;
        }
    }
}
