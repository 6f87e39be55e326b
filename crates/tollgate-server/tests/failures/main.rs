//! Servers that die under a steady load: what clients see, for how long, and how many are let through.
//!
//! `scripts/failures` runs all of it and prints the table of docs/stores.md; what is quick runs with the other tests.

mod load;
mod report;
mod scenario;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use load::{KEYS, Kind, LIMIT, ObservedRequest, RATE};
use report::{HEAD, Row, rows};
use scenario::{Deadline, Death};

/// How long after the servers' own recovery a failure mode may still decide.
const FOUND_WITHIN: Duration = Duration::from_millis(500);

/// One at a time: they start many processes each.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Death {
    fn rows(&self) -> Vec<Row> {
        rows(self.what, &self.recovery, &self.seen, self.died)
    }

    fn failures(&self) -> impl Iterator<Item = &ObservedRequest> {
        self.seen.iter().filter(|seen| seen.at >= self.died && seen.is_failure())
    }

    /// What each failure mode promises, whatever has died.
    fn check(&self) {
        for seen in self.seen.iter().filter(|seen| seen.at >= self.died) {
            let promised = match (seen.mode, seen.kind) {
                ("closed", _) => matches!(seen.status, Some(200 | 429 | 503)),
                (_, Kind::BelowLimit) => seen.status == Some(200),
                (_, Kind::AtLimit) => matches!(seen.status, Some(200 | 429)),
            };
            assert!(promised, "{seen:?}");
        }
    }

    /// Open lets through no more than is sent until the servers have recovered, and a moment later.
    fn check_extra(&self, fresh: usize) {
        for row in self.rows() {
            let at_most = match row.mode {
                "open" => ((self.recovered_after + FOUND_WITHIN).as_secs_f64() * f64::from(RATE)) as usize,
                _ => 0,
            };
            assert!(
                row.extra <= at_most + fresh,
                "{row}: {at_most} at most, and {fresh} that were forgotten"
            );
        }
    }
}

#[test]
fn a_redis_that_dies_and_comes_back() {
    let _alone = alone();
    let Some(death) = scenario::redis() else { return };
    death.check();
    death.check_extra(0);
}

#[test]
fn a_sentinel_failover_lets_through_what_is_sent_until_the_promotion() {
    let _alone = alone();
    let Some(death) = scenario::sentinel() else { return };
    death.check();
    death.check_extra(0);
}

#[test]
fn a_cluster_failover_fails_the_slots_of_the_dead_server_only() {
    let _alone = alone();
    let Some((death, is_on_dead)) = scenario::cluster(Deadline::Patient) else { return };
    death.check();
    death.check_extra(0);
    let elsewhere: BTreeSet<_> =
        death.failures().map(|seen| &seen.user).filter(|user| !is_on_dead(user)).collect();
    assert!(elsewhere.is_empty(), "kept by servers that live: {elsewhere:?}");
    assert!(death.failures().count() > 0, "some requests failed");
}

#[test]
fn a_memcached_of_three_that_dies_takes_its_own_keys_with_it() {
    let _alone = alone();
    let Some(death) = scenario::memcached() else { return };
    death.check();
    // It comes back empty: its keys begin anew, under every failure mode.
    death.check_extra(KEYS * LIMIT);
}

#[test]
fn a_rules_database_that_dies_changes_no_decision() {
    let _alone = alone();
    let Some(death) = scenario::postgres() else { return };
    assert_eq!(death.failures().count(), 0);
    death.check_extra(0);
}

#[test]
fn a_node_that_dies_behind_a_load_balancer() {
    let _alone = alone();
    let Some(death) = scenario::node_of_three(Deadline::Patient) else { return };
    let lost = death.failures().count();
    // What was on its way to the node at that moment, and nothing else.
    assert!(lost <= 12, "{lost} requests had no answer of a node");
    assert!(death.rows().iter().all(|row| row.extra == 0));
}

/// The whole table; some servers take a minute to start.
#[test]
#[ignore = "scripts/failures runs it"]
fn the_table_of_all_failures() {
    let _alone = alone();
    println!("\n{HEAD}");
    let print = |death: Option<Death>| {
        death.iter().flat_map(Death::rows).for_each(|row| println!("{row}"));
    };
    print(scenario::redis());
    print(scenario::sentinel());
    print(scenario::cluster(Deadline::Default).map(|(death, _)| death));
    print(scenario::memcached());
    print(scenario::cassandra());
    print(scenario::cassandra_of_three());
    print(scenario::postgres());
    print(scenario::node_of_three(Deadline::Default));
}
