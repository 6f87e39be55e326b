//! Even spacing after a refusal that the server does not explain: it has a smaller burst than the budget, as nginx has.
//!
//! Calls are spaced at the rate of the budget, with a burst that each further refusal halves, so that late calls catch up
//! as far as the server allows. Spacing ends after a time, twice as long each time: the refusal may have had another cause.

use std::time::Duration;

use tokio::time::Instant;

/// How long calls are spaced after the last refusal, the first time.
const SPACED_FOR: Duration = Duration::from_secs(3600);
const MAX_DOUBLINGS: u32 = 6;

/// A rate at which calls can be spaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpacedRate {
    pub spacing: Duration,
    /// The burst after the first refusal.
    pub burst: u32,
}

#[derive(Debug)]
pub struct Pacing {
    /// Of the budget; `None` without one.
    rate: Option<SpacedRate>,
    spaced: Option<SpacedCalls>,
    /// How often calls have been spaced.
    episodes: u32,
}

#[derive(Clone, Copy, Debug)]
struct SpacedCalls {
    burst: u32,
    /// When the whole burst is available again.
    full_at: Instant,
    refused_at: Instant,
    until: Instant,
}

impl Pacing {
    pub fn new(rate: Option<SpacedRate>) -> Pacing {
        Pacing { rate, spaced: None, episodes: 0 }
    }

    /// When the next call may be sent; `None` if it may be now.
    pub fn ready_at(&mut self, now: Instant) -> Option<Instant> {
        let SpacedRate { spacing, .. } = self.rate?;
        let spaced = self.spaced?;
        if spaced.until <= now {
            self.spaced = None;
            return None;
        }
        let at = spaced.full_at.checked_sub(spacing * (spaced.burst - 1))?;
        Some(at).filter(|at| *at > now)
    }

    pub fn spend(&mut self, now: Instant) {
        if let (Some(rate), Some(spaced)) = (self.rate, &mut self.spaced) {
            spaced.full_at = spaced.full_at.max(now) + rate.spacing;
        }
    }

    pub fn unspend(&mut self) {
        if let (Some(rate), Some(spaced)) = (self.rate, &mut self.spaced) {
            spaced.full_at = spaced.full_at.checked_sub(rate.spacing).unwrap_or(spaced.full_at);
        }
    }

    /// A call was refused without a word about limits. Those that were sent before an earlier refusal arrived add nothing.
    pub fn refuse(&mut self, sent_at: Instant, now: Instant) {
        let Some(rate) = self.rate else { return };
        if self.spaced.is_some_and(|spaced| sent_at <= spaced.refused_at) {
            return;
        }
        let burst = match self.spaced {
            Some(spaced) => spaced.burst / 2,
            None => {
                self.episodes = (self.episodes + 1).min(MAX_DOUBLINGS + 1);
                rate.burst
            }
        };
        let until = now + SPACED_FOR * (1 << (self.episodes - 1));
        let full_at = self.spaced.map_or(now, |spaced| spaced.full_at);
        self.spaced = Some(SpacedCalls { burst: burst.max(1), full_at, refused_at: now, until });
    }

    pub fn is_idle(&self, now: Instant) -> bool {
        self.spaced.is_none_or(|spaced| spaced.until <= now)
    }
}
