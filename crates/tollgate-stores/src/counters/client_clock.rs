//! The setup of stores that decide by the nodes' clocks.

use std::time::Duration;

use super::name::Naming;

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct ClientClockSetup<A> {
    pub address: A,
    pub naming: Naming,
    /// Per decision, over all its round trips.
    pub deadline: Duration,
    /// Added to the lifetime of every counter.
    pub slack: Duration,
}

/// The address of a store, and its default deadline.
pub trait ClientClockAddress {
    const DEADLINE: Duration;
}

impl<A: ClientClockAddress> ClientClockSetup<A> {
    pub const DEADLINE: Duration = A::DEADLINE;
    pub const SLACK: Duration = Duration::from_secs(1);
    /// Upper bound on how long a key outlives the time when it can last matter: the slack, one second of rounding, and
    /// the server's clock, which ticks once a second and can be late on a busy machine.
    pub const EXPIRY_SLACK: Duration = Duration::from_secs(4);

    pub fn new(address: A) -> ClientClockSetup<A> {
        ClientClockSetup { address, naming: Naming::default(), deadline: Self::DEADLINE, slack: Self::SLACK }
    }
}
