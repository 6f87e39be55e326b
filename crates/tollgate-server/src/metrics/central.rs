//! Metrics of the central store, and of the records of tracked keys in it.

use std::fmt;
use std::sync::atomic::Ordering;

use tollgate::internal::EngineCore;
use tollgate::internal::ban::ViolationCounter;
use tollgate::internal::track::Outbox;

use crate::gate::CentralBackend;
use crate::gate::tracking::TrackWrites;
use crate::metrics::writer::MetricsWriter;

impl MetricsWriter<'_> {
    pub(super) fn central(&mut self, central: &CentralBackend, engine: &EngineCore) -> fmt::Result {
        let servers = central.health();
        let mut up = self.gauges("tollgate_central_up", "Whether a server of the central store answers.")?;
        for server in &servers {
            up.sample(&[("server", &server.server)], u64::from(server.trouble.is_none()))?;
        }
        let mut refused = self.counters(
            "tollgate_central_refused_total",
            "Charges that failed fast because the server is down.",
        )?;
        for server in &servers {
            refused.sample(&[("server", &server.server)], server.refused)?;
        }
        let mut outages =
            self.counters("tollgate_central_outages_total", "Outages of a server of the central store.")?;
        for server in &servers {
            outages.sample(&[("server", &server.server)], server.opened)?;
        }
        self.histogram(
            "tollgate_central_check_seconds",
            "Time of a call of the central store that decides. Decisions without such a call are not counted.",
            &central.latencies,
        )?;
        self.gauge(
            "tollgate_central_protected",
            "1 while all servers answer; 0 while on_store_error is in force for some keys.",
            u64::from(!central.is_impaired()),
        )?;
        self.counter(
            "tollgate_central_contended_total",
            "Charges that failed: the counter was changed concurrently on every attempt.",
            central.store.contended(),
        )?;
        self.counter(
            "tollgate_central_settlements_total",
            "Charges that were refunded or corrected.",
            central.settlements(),
        )?;
        let counts = &central.bans.counts;
        let mut violations = self.counters(
            "tollgate_violations_total",
            "Denials counted towards a ban, by scope: the fleet, or this node while the store did not answer.",
        )?;
        for (place, count) in [("fleet", &counts.fleet), ("node", &counts.node)] {
            violations.sample(&[("counted", place)], count.load(Ordering::Relaxed))?;
        }
        self.gauge(
            "tollgate_violations_shared",
            "1 while denials are counted towards bans for all nodes, 0 while each node counts for itself.",
            u64::from(engine.violation_counter() == ViolationCounter::Fleet),
        )?;
        self.counter(
            "tollgate_ban_events_dropped_total",
            "Bans and lifts that were not published to other nodes: too many at once.",
            counts.dropped_events.load(Ordering::Relaxed),
        )
    }

    pub(super) fn tracking(&mut self, outbox: &Outbox, writes: &TrackWrites) -> fmt::Result {
        let mut results =
            self.counters("tollgate_tracking_writes_total", "Writes of tracked keys, by result.")?;
        results.sample(&[("result", "written")], writes.written())?;
        results.sample(&[("result", "failed")], writes.failed())?;
        self.counter(
            "tollgate_tracking_dropped_total",
            "Tries of tracked keys that were not recorded: too many keys wait for the store.",
            outbox.dropped(),
        )?;
        self.gauge(
            "tollgate_tracking_pending_keys",
            "Tracked keys that wait for the store, or were written less than a second ago.",
            outbox.keys() as u64,
        )
    }
}
