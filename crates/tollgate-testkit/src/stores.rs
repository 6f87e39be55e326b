//! The central stores, opened for tests with a given time.

/// The methods of [`Store`](crate::central::Store) that call a `CounterStore`.
macro_rules! call_store {
    ($this:ident => $store:expr) => {
        async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
            let $this = self;
            $store.charge(charges, now).await
        }

        async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
            let $this = self;
            $store.peek(charges, now).await
        }

        async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
            let $this = self;
            $store.settle(receipt, real_cost, now).await
        }

        async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
            let $this = self;
            $store.reset(counter, now).await
        }

        fn trouble(&self) -> Option<String> {
            let $this = self;
            $store.health().into_iter().find_map(|server| server.trouble)
        }
    };
}

pub mod cassandra;
pub mod memcached;
pub mod redis;
