//! Load balancing: selects the upstream of a request.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::Time;

use crate::config::Balance;
use crate::transport::proxy::upstream::server::Upstream;

#[derive(Default)]
pub struct RoundRobinCursor(AtomicUsize);

/// Chooses among the upstreams other than `tried` that are up; if none is up, among all others: an attempt is better
/// than a certain error. `None` only if there is no other upstream.
pub fn choose<'u>(
    upstreams: &'u [Arc<Upstream>],
    balance: &Balance,
    cursor: &RoundRobinCursor,
    sticky: Option<u64>,
    tried: Option<&Arc<Upstream>>,
    now: Time,
) -> Option<&'u Arc<Upstream>> {
    if let ([only], None) = (upstreams, tried) {
        return Some(only);
    }
    let untried = |upstream: &&Arc<Upstream>| tried.is_none_or(|tried| !Arc::ptr_eq(tried, upstream));
    let up = || upstreams.iter().filter(untried).filter(|upstream| upstream.is_up(now));
    let any = || upstreams.iter().filter(untried);
    match (balance, sticky) {
        (Balance::Hash(_), Some(key)) => {
            // Rendezvous hashing: the upstream with the highest score for this key. When an upstream is removed, only
            // its keys move.
            let score = |upstream: &&Arc<Upstream>| rendezvous_score(key, upstream);
            up().max_by_key(score).or_else(|| any().max_by_key(score))
        }
        (Balance::LeastConnections, _) => {
            let start = cursor.0.fetch_add(1, Ordering::Relaxed);
            let load = |(n, upstream): &(usize, &Arc<Upstream>)| {
                (upstream.in_flight.load(Ordering::Relaxed), n.wrapping_sub(start) % upstreams.len())
            };
            let least = up().enumerate().min_by_key(load).or_else(|| any().enumerate().min_by_key(load));
            least.map(|(_, upstream)| upstream)
        }
        (Balance::RoundRobin | Balance::Hash(_), _) => {
            let start = cursor.0.fetch_add(1, Ordering::Relaxed);
            let nth = |count: usize| if count == 0 { 0 } else { start % count };
            up().nth(nth(up().count())).or_else(|| any().nth(nth(any().count())))
        }
    }
}

fn rendezvous_score(key: u64, upstream: &Upstream) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    (key, upstream.address.authority.as_str()).hash(&mut hasher);
    hasher.finish()
}

/// The hash of a sticky value; the same on every node.
pub fn hash_key(value: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UpstreamAddress;
    use crate::transport::proxy::upstream::server::UpstreamFailure;

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn upstreams(count: usize) -> Vec<Arc<Upstream>> {
        let new =
            |n| Upstream::new(UpstreamAddress::parse(&format!("http://10.0.0.{n}:80")).expect("valid"), 1);
        (0..count).map(|n| Arc::new(new(n))).collect()
    }

    fn chosen(
        upstreams: &[Arc<Upstream>],
        balance: &Balance,
        cursor: &RoundRobinCursor,
        sticky: Option<u64>,
    ) -> usize {
        let chosen = choose(upstreams, balance, cursor, sticky, None, NOW).expect("there are some");
        upstreams.iter().position(|each| Arc::ptr_eq(each, chosen)).expect("it is one of them")
    }

    fn put_down(upstream: &Upstream) {
        (0..MAX_TRIES)
            .for_each(|_| upstream.record_failure(UpstreamFailure::response("closed".to_owned()), NOW));
    }

    const MAX_TRIES: usize = 3;

    #[test]
    fn round_robin_skips_upstreams_that_are_down() {
        let upstreams = upstreams(3);
        let cursor = RoundRobinCursor::default();
        let round = |count| (0..count).map(|_| chosen(&upstreams, &Balance::RoundRobin, &cursor, None));
        assert_eq!(round(4).collect::<Vec<_>>(), [0, 1, 2, 0]);
        put_down(&upstreams[1]);
        assert!(round(10).all(|n| n != 1));
        upstreams.iter().for_each(|upstream| put_down(upstream));
        assert!(round(10).any(|n| n == 1), "with all down, any may be chosen");
    }

    #[test]
    fn the_least_busy_is_chosen() {
        let upstreams = upstreams(3);
        let cursor = RoundRobinCursor::default();
        upstreams[0].in_flight.store(2, Ordering::Relaxed);
        upstreams[2].in_flight.store(1, Ordering::Relaxed);
        assert_eq!(chosen(&upstreams, &Balance::LeastConnections, &cursor, None), 1);
    }

    #[test]
    fn a_key_stays_where_it_is_and_only_keys_of_a_lost_upstream_move() {
        let upstreams = upstreams(4);
        let cursor = RoundRobinCursor::default();
        let hash = Balance::Hash(tollgate::internal::identity::Attribute::User);
        let choose = |n: u64| chosen(&upstreams, &hash, &cursor, Some(hash_key(&format!("user {n}"))));
        let before: Vec<_> = (0..1000).map(choose).collect();
        assert!((0..4).all(|n| before.iter().filter(|chosen| **chosen == n).count() > 150));
        put_down(&upstreams[2]);
        for (n, before) in before.iter().enumerate() {
            let after = choose(n as u64);
            assert!(after != 2 && (*before == 2 || after == *before));
        }
    }
}
