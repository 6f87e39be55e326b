//! Limits the open connections per client address: all clients of a listener share its connections.
//!
//! An address without open connections has no entry, so the table is bounded by the listener's connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tollgate::internal::lock;

use crate::log_rate::LogLimiter;

/// An IPv6 client usually has a whole network, so a network counts as one address.
const IPV6_PREFIX: u32 = 64;

pub struct AddressLimiter {
    listener: &'static str,
    /// `None` for no bound.
    max: Option<usize>,
    is_trusted: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    open: Mutex<HashMap<IpAddr, usize>>,
    refusals: LogLimiter,
}

impl AddressLimiter {
    /// At most `max` per address that is neither loopback nor trusted: many clients may be behind those.
    pub fn new(
        listener: &'static str,
        max: Option<usize>,
        is_trusted: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Arc<AddressLimiter> {
        let open = Mutex::default();
        let refusals = LogLimiter::default();
        Arc::new(AddressLimiter { listener, max, is_trusted: Box::new(is_trusted), open, refusals })
    }

    pub fn unbounded(listener: &'static str) -> Arc<AddressLimiter> {
        AddressLimiter::new(listener, None, |_| true)
    }

    /// Admits a connection until the slot is dropped; `None` if the address has reached its limit, which is logged.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<AddressSlot> {
        let peer = peer.to_canonical();
        let Some(max) = self.max.filter(|_| !peer.is_loopback() && !(self.is_trusted)(peer)) else {
            return Some(AddressSlot(None));
        };
        let address = network(peer);
        let mut open = lock(&self.open);
        let count = open.entry(address).or_default();
        if *count < max {
            *count += 1;
            return Some(AddressSlot(Some((Arc::clone(self), address))));
        }
        drop(open);
        self.refusals.warn("refused connections", || {
            let listener = self.listener;
            tracing::warn!(listener, %peer, max, "a connection was refused: its address has too many (listen.per_address)");
        });
        None
    }
}

/// The address that a client is counted by.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX)).into()
        }
    }
}

/// The slot of an open connection.
pub struct AddressSlot(Option<(Arc<AddressLimiter>, IpAddr)>);

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let Some((table, address)) = self.0.take() else { return };
        let mut open = lock(&table.open);
        if let Entry::Occupied(mut entry) = open.entry(address) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_its_share_and_gives_it_back() {
        let table = AddressLimiter::new("http", Some(2), |ip| ip == IpAddr::from([10, 0, 0, 1]));
        let first = table.admit(ip("192.0.2.1"));
        let second = table.admit(ip("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(table.admit(ip("192.0.2.1")).is_none());
        let other = table.admit(ip("192.0.2.2"));
        assert!(other.is_some(), "another address has its own share");
        drop(first);
        assert!(table.admit(ip("192.0.2.1")).is_some());
        drop((second, other));
        assert!(table.open.lock().expect("not poisoned").is_empty(), "no entry without a connection");
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_balancers_are_not_bounded() {
        let table = AddressLimiter::new("http", Some(1), |ip| ip == IpAddr::from([10, 0, 0, 1]));
        let _place = table.admit(ip("2001:db8:0:1::1"));
        assert!(table.admit(ip("2001:db8:0:1:ffff::2")).is_none());
        assert!(table.admit(ip("2001:db8:0:2::1")).is_some());
        let shares: Vec<_> =
            ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"]
                .into_iter()
                .flat_map(|text| [table.admit(ip(text)), table.admit(ip(text))])
                .collect();
        assert!(shares.iter().all(Option::is_some));
    }
}
