//! Metrics of the central store.

use std::sync::atomic::Ordering;

use tollgate::Engine;
use tollgate::ban::ViolationCounter;

use crate::gate::CentralBackend;
use crate::metrics::MetricsWriter;

impl MetricsWriter {
    pub(super) fn central(&mut self, central: &CentralBackend, engine: &Engine) {
        let servers = central.health();
        self.describe("tollgate_central_up", "gauge", "Whether a server of the central store answers.");
        for server in &servers {
            let up = u64::from(server.trouble.is_none());
            self.sample("tollgate_central_up", &[("server", &server.server)], up);
        }
        self.describe(
            "tollgate_central_refused_total",
            "counter",
            "Charges that did not wait for a server that is down.",
        );
        for server in &servers {
            self.sample("tollgate_central_refused_total", &[("server", &server.server)], server.refused);
        }
        self.describe("tollgate_central_outages_total", "counter", "How often a server was found down.");
        for server in &servers {
            self.sample("tollgate_central_outages_total", &[("server", &server.server)], server.opened);
        }
        self.one(
            "tollgate_central_protected",
            "gauge",
            "1 while all servers answer; 0 while on_store_error is in force for some keys.",
            u64::from(!central.is_impaired()),
        );
        self.one(
            "tollgate_central_contended_total",
            "counter",
            "Charges without an answer: others changed the same counter each time.",
            central.store.contended(),
        );
        self.one(
            "tollgate_central_settlements_total",
            "counter",
            "Charges that were given back or corrected.",
            central.settlements(),
        );
        let counts = &central.bans.counts;
        self.describe(
            "tollgate_violations_total",
            "counter",
            "Denials counted towards a ban, by where: for the fleet, or on this node while the store did not answer.",
        );
        for (place, count) in [("fleet", &counts.fleet), ("node", &counts.node)] {
            self.sample("tollgate_violations_total", &[("counted", place)], count.load(Ordering::Relaxed));
        }
        self.one(
            "tollgate_violations_shared",
            "gauge",
            "1 while denials are counted towards bans for all nodes, 0 while each node counts for itself.",
            u64::from(engine.violation_counter() == ViolationCounter::Fleet),
        );
        self.one(
            "tollgate_ban_events_dropped_total",
            "counter",
            "Bans and lifts that other nodes were not told of: too many at once.",
            counts.dropped_events.load(Ordering::Relaxed),
        );
    }
}
