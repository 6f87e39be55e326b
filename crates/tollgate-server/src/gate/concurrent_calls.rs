//! Calls of the central store that wait at the same time. The store sends them together, so a batch takes a few round
//! trips instead of one for each call.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

/// Calls of one batch that wait at the same time. A batch of the decision API takes several round trips then, and leaves
/// room for other connections.
const MAX_WAITING: usize = 64;

/// Makes a call for each item; the results are in the order of the items. Items with the same key are called one after
/// the other, in their order; the others at the same time, begun in their order.
pub async fn call_each<'i, I, K, R, F>(
    items: &'i [I],
    key: impl Fn(&'i I) -> K,
    call: impl Fn(&'i I) -> F,
) -> Vec<R>
where
    K: Eq + Hash,
    F: Future<Output = R>,
{
    let mut chains: Vec<Vec<usize>> = Vec::with_capacity(items.len());
    let mut chain_of: HashMap<K, usize> = HashMap::with_capacity(items.len());
    for (n, item) in items.iter().enumerate() {
        let chain = *chain_of.entry(key(item)).or_insert(chains.len());
        match chains.get_mut(chain) {
            Some(chain) => chain.push(n),
            None => chains.push(vec![n]),
        }
    }
    drop(chain_of);
    let call = &call;
    let mut waiting_chains = chains.into_iter().map(|chain| async move {
        let mut results = Vec::with_capacity(chain.len());
        for n in chain {
            results.push((n, call(&items[n]).await));
        }
        results
    });
    let mut results: Vec<(usize, R)> = Vec::with_capacity(items.len());
    let mut running: FuturesUnordered<_> = waiting_chains.by_ref().take(MAX_WAITING).collect();
    while let Some(done) = running.next().await {
        results.extend(done);
        running.extend(waiting_chains.next());
    }
    results.sort_unstable_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::time::{Instant, sleep};

    use super::*;

    const ROUND_TRIP: std::time::Duration = std::time::Duration::from_millis(20);

    #[tokio::test(start_paused = true)]
    async fn different_keys_wait_together_and_the_same_key_in_order() {
        let started = Instant::now();
        let begun = RefCell::new(Vec::new());
        let results = call_each(
            &["a1", "b1", "a2", "c1", "a3"],
            |item| item.as_bytes()[0],
            |item| {
                let begun = &begun;
                async move {
                    begun.borrow_mut().push(*item);
                    sleep(ROUND_TRIP).await;
                    item.to_uppercase()
                }
            },
        )
        .await;
        assert_eq!(results, ["A1", "B1", "A2", "C1", "A3"]);
        assert_eq!(*begun.borrow(), ["a1", "b1", "c1", "a2", "a3"]);
        assert_eq!(started.elapsed(), 3 * ROUND_TRIP);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_at_the_same_time_are_bounded() {
        let waiting = Cell::new(0);
        let most = Cell::new(0);
        let items: Vec<usize> = (0..1_000).collect();
        let results = call_each(
            &items,
            |item| *item,
            |item| {
                let waiting = &waiting;
                let most = &most;
                async move {
                    waiting.set(waiting.get() + 1);
                    most.set(most.get().max(waiting.get()));
                    sleep(ROUND_TRIP).await;
                    waiting.set(waiting.get() - 1);
                    *item
                }
            },
        )
        .await;
        assert_eq!(results, items);
        assert_eq!(most.get(), MAX_WAITING);
    }
}
