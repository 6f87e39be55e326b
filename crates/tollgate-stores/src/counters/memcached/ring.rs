//! Consistent hashing: a ring on which every server has many points.
//!
//! Adding or removing a server moves only its own share of the keys. The points depend only on the servers' names, so
//! all nodes agree, in whatever order they list them.

use ring::digest::{SHA256, digest};

/// Keeps the servers' shares within about a tenth of each other.
const POINTS_PER_SERVER: usize = 160;
const POINTS_PER_DIGEST: usize = 4;

#[derive(Debug)]
pub struct HashRing {
    /// (point, index of the server), sorted.
    points: Vec<(u64, usize)>,
}

impl HashRing {
    pub fn new(servers: &[String]) -> HashRing {
        let mut points: Vec<_> =
            servers.iter().enumerate().flat_map(|(n, name)| points_of(n, name)).collect();
        points.sort_unstable_by_key(|(point, n)| (*point, &servers[*n]));
        HashRing { points }
    }

    /// The index of the server that has `key`.
    pub fn server_of(&self, key: &str) -> usize {
        let point = u64_at(digest(&SHA256, key.as_bytes()).as_ref(), 0);
        let next = self.points.partition_point(|(at, _)| *at < point);
        let wrapped = self.points.get(next).or_else(|| self.points.first());
        wrapped.map_or(0, |(_, server)| *server)
    }
}

fn points_of(n: usize, name: &str) -> impl Iterator<Item = (u64, usize)> {
    (0..POINTS_PER_SERVER / POINTS_PER_DIGEST).flat_map(move |round| {
        let digest = digest(&SHA256, format!("{name}#{round}").as_bytes());
        (0..POINTS_PER_DIGEST).map(move |at| (u64_at(digest.as_ref(), at), n))
    })
}

fn u64_at(digest: &[u8], at: usize) -> u64 {
    let bytes = digest.chunks_exact(8).nth(at).and_then(|chunk| chunk.try_into().ok());
    u64::from_be_bytes(bytes.expect("a digest has four words"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(servers: &[&str]) -> Vec<String> {
        let servers: Vec<_> = servers.iter().map(|server| (*server).to_owned()).collect();
        let ring = HashRing::new(&servers);
        (0..10_000).map(|n| servers[ring.server_of(&format!("user:{n}"))].clone()).collect()
    }

    #[test]
    fn servers_share_the_keys_about_evenly() {
        let owners = owners(&["a:11211", "b:11211", "c:11211"]);
        for server in ["a:11211", "b:11211", "c:11211"] {
            let share = owners.iter().filter(|owner| *owner == server).count();
            assert!((2_600..4_100).contains(&share), "{server} keeps {share} of 10000");
        }
    }

    #[test]
    fn a_new_server_takes_its_share_and_moves_nothing_else() {
        let two = owners(&["a:11211", "b:11211"]);
        let three = owners(&["c:11211", "b:11211", "a:11211"]);
        let moved: Vec<_> = two.iter().zip(&three).filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| *after == "c:11211"));
        assert!((2_600..4_100).contains(&moved.len()), "{} moved", moved.len());
    }
}
