//! The most requests of each client within any period: a sliding window per client, counted in steps.
//!
//! A client whose peak is at most N is never denied by a limit of N per period, whether as GCRA, as a fixed window or as a
//! sliding log. Requests of one step are counted together and leave the window with the last of them, so a peak is that
//! of a period longer by at most one step; with times in whole steps it is exact. When there are too many clients, one in
//! 2, 4, 8 … is counted, chosen by a hash of its key.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::time::Period;

const STEPS: u64 = 60;
const MAX_CLIENTS: usize = 1 << 18;

#[derive(Default)]
struct Client {
    requests: u64,
    peak: u32,
    in_window: u32,
    /// The steps of the current window: their last request, and how many there were.
    steps: VecDeque<(Time, u32)>,
}

pub struct ClientPeaks {
    clients: HashMap<Box<str>, Client>,
    max_clients: usize,
    window_ns: u64,
    step_ns: u64,
    /// Of the hashes, those with this many low bits zero are counted.
    sample_bits: u32,
}

impl ClientPeaks {
    pub fn new(window: Period) -> ClientPeaks {
        let window_ns = window.nanos();
        ClientPeaks {
            clients: HashMap::new(),
            max_clients: MAX_CLIENTS,
            window_ns,
            step_ns: (window_ns / STEPS).max(1),
            sample_bits: 0,
        }
    }

    /// Counts a request; times never go back.
    pub fn add(&mut self, key: &str, at: Time) {
        if !self.is_sampled(key) {
            return;
        }
        if !self.clients.contains_key(key) {
            while self.clients.len() >= self.max_clients && self.sample_bits < 32 {
                self.sample_bits += 1;
                let bits = self.sample_bits;
                self.clients.retain(|key, _| hash_of(key).trailing_zeros() >= bits);
            }
            if !self.is_sampled(key) {
                return;
            }
            self.clients.insert(key.into(), Client::default());
        }
        let Some(client) = self.clients.get_mut(key) else { return };
        client.requests += 1;
        while let Some((last, count)) = client.steps.front().copied() {
            if at.nanos() - last.nanos() < self.window_ns {
                break;
            }
            client.in_window -= count;
            client.steps.pop_front();
        }
        match client.steps.back_mut() {
            Some((last, count)) if last.nanos() / self.step_ns == at.nanos() / self.step_ns => {
                *last = at;
                *count += 1;
            }
            _ => client.steps.push_back((at, 1)),
        }
        client.in_window += 1;
        client.peak = client.peak.max(client.in_window);
    }

    fn is_sampled(&self, key: &str) -> bool {
        self.sample_bits == 0 || hash_of(key).trailing_zeros() >= self.sample_bits
    }

    pub fn report(self) -> PeakReport {
        let one = |(key, client): (Box<str>, Client)| ClientPeak {
            key,
            peak: client.peak,
            requests: client.requests,
        };
        let mut clients: Vec<_> = self.clients.into_iter().map(one).collect();
        clients.sort_unstable_by(|a, b| b.peak.cmp(&a.peak).then_with(|| a.key.cmp(&b.key)));
        PeakReport {
            clients,
            sampled_one_in: 1 << self.sample_bits,
            step: Duration::from_nanos(self.step_ns),
        }
    }
}

fn hash_of(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

pub struct ClientPeak {
    pub key: Box<str>,
    pub peak: u32,
    pub requests: u64,
}

/// The clients, highest peak first.
pub struct PeakReport {
    clients: Vec<ClientPeak>,
    pub sampled_one_in: u64,
    pub step: Duration,
}

impl PeakReport {
    pub fn clients(&self) -> u64 {
        self.clients.len() as u64
    }

    /// Of the counted clients.
    pub fn requests(&self) -> u64 {
        self.clients.iter().map(|client| client.requests).sum()
    }

    /// The lowest limit that spares a share of the clients, in thousandths.
    pub fn limit_for(&self, thousandths: u32) -> u32 {
        self.limit_but_for(self.outliers(thousandths))
    }

    /// The clients that are left when a share of all is spared, in thousandths.
    pub fn outliers(&self, thousandths: u32) -> usize {
        (self.clients.len() as u64 * u64::from(1000 - thousandths) / 1000) as usize
    }

    /// The lowest limit that spares all but so many clients.
    pub fn limit_but_for(&self, outliers: usize) -> u32 {
        self.clients.get(outliers).map_or(0, |client| client.peak)
    }

    /// Those with the highest peaks, at most `count`.
    pub fn highest(&self, count: usize) -> &[ClientPeak] {
        &self.clients[..count.min(self.clients.len())]
    }

    /// The clients whose peak is above a limit.
    pub fn above(&self, limit: u32) -> &[ClientPeak] {
        &self.clients[..self.clients.partition_point(|client| client.peak > limit)]
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::PolicySnapshot;
    use tollgate::internal::engine::EngineCore;
    use tollgate::internal::time::Unit;
    use tollgate::{Hit, Time};

    use super::*;

    fn minute() -> Period {
        Period::new(1, Unit::Minute).expect("a minute")
    }

    /// At whole seconds the peak is exact: as a limit it denies nothing, and one less denies something.
    #[test]
    fn a_peak_is_the_least_limit_that_never_denies() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..50 {
            let mut at = 1_767_225_600;
            let times: Vec<_> = (0..200)
                .map(|_| {
                    at += random.u64(..if round % 2 == 0 { 2 } else { 40 });
                    Time::from_secs(at)
                })
                .collect();
            let mut peaks = ClientPeaks::new(minute());
            times.iter().for_each(|at| peaks.add("ip:192.0.2.1", *at));
            let peak = peaks.report().limit_for(990);
            let denied = |limit: u32, algorithm: &str| {
                let rules = format!("rules: [{{ id: a, limit: {limit}/m, algorithm: {algorithm} }}]");
                let engine = EngineCore::new(PolicySnapshot::from_yaml(&rules).expect("valid rules"));
                times.iter().filter(|at| !engine.check(&Hit::by("ann"), **at).allowed).count()
            };
            for algorithm in ["gcra", "fixed-window", "sliding-log"] {
                assert_eq!(denied(peak, algorithm), 0, "{algorithm} at {peak}/m");
            }
            assert!(denied(peak - 1, "sliding-log") > 0, "{peak}");
        }
    }

    #[test]
    fn a_limit_spares_the_share_that_it_is_for() {
        let mut peaks = ClientPeaks::new(minute());
        for client in 0..1000_u32 {
            for _ in 0..=client {
                peaks.add(&format!("user:{client}"), Time::from_secs(1_767_225_600));
            }
        }
        let report = peaks.report();
        for (share, limit, caught) in [(990, 990, 10), (995, 995, 5), (999, 999, 1)] {
            assert_eq!((report.limit_for(share), report.above(limit).len()), (limit, caught));
        }
        assert_eq!(&*report.above(990)[0].key, "user:999");
    }

    #[test]
    fn too_many_clients_are_sampled_evenly() {
        let mut peaks = ClientPeaks { max_clients: 4096, ..ClientPeaks::new(minute()) };
        for client in 0..100_000_u32 {
            for _ in 0..1 + client % 100 {
                peaks.add(&format!("user:{client}"), Time::from_secs(1_767_225_600));
            }
        }
        let report = peaks.report();
        assert!(report.clients() <= 4096 && report.sampled_one_in >= 32);
        assert!((98..=100).contains(&report.limit_for(990)), "{}", report.limit_for(990));
    }
}
