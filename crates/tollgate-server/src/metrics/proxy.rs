//! Metrics of the proxy. Upstreams are named as in the configuration.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::metrics::writer::MetricsWriter;
use crate::queue::QueuedState;
use crate::transport::proxy::Proxy;

impl MetricsWriter<'_> {
    pub(super) fn queue(&mut self, counts: &[(QueuedState, u64)]) -> fmt::Result {
        let help = "Requests in the queue, by state; of all nodes if it is shared.";
        let mut requests = self.gauges("tollgate_queue_requests", help)?;
        for state in QueuedState::ALL {
            let count = counts.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count);
            requests.sample(&[("state", state.name())], count)?;
        }
        Ok(())
    }

    pub(super) fn proxy(&mut self, proxy: &Proxy) -> fmt::Result {
        let upstreams = proxy.upstreams();
        let mut up =
            self.gauges("tollgate_upstream_up", "Whether an upstream serves requests, as far as is known.")?;
        for upstream in &upstreams {
            up.sample(&[("upstream", &upstream.address)], upstream.is_up().into())?;
        }
        let mut in_flight =
            self.gauges("tollgate_upstream_in_flight", "Requests in flight to an upstream.")?;
        for upstream in &upstreams {
            in_flight.sample(&[("upstream", &upstream.address)], upstream.in_flight as u64)?;
        }
        self.histogram(
            "tollgate_upstream_response_seconds",
            "Time from sending a request to an upstream until the head of its response, connecting included.",
            &proxy.latencies,
        )?;
        self.gauge(
            "tollgate_held_requests",
            "Requests that are held until their release time.",
            proxy.held_requests() as u64,
        )?;
        let counts = &proxy.counts;
        for (name, help, counter) in [
            ("tollgate_proxy_retries_total", "Requests sent to a second upstream.", &counts.retried),
            (
                "tollgate_proxy_unreachable_total",
                "Attempts that found an upstream down or broken.",
                &counts.unreachable,
            ),
            (
                "tollgate_proxy_timeouts_total",
                "Requests that an upstream did not answer in time.",
                &counts.timed_out,
            ),
            (
                "tollgate_proxy_rejected_total",
                "Requests that were rejected as invalid or too slow.",
                &counts.rejected,
            ),
            ("tollgate_held_total", "Requests that were held until their release time.", &counts.held),
            (
                "tollgate_not_held_total",
                "Requests denied because too many were held already.",
                &counts.hold_rejected,
            ),
            ("tollgate_queued_total", "Requests that were queued.", &counts.queued),
            ("tollgate_replayed_total", "Queued requests that the API has answered.", &counts.replayed),
            (
                "tollgate_queue_given_up_total",
                "Queued requests given up: expired, or out of attempts.",
                &counts.dead_lettered,
            ),
        ] {
            self.counter(name, help, counter.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}
