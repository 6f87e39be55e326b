//! Requests by transport and status. Both labels have few values, whatever clients and upstreams send.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;
use tollgate::internal::stripes::Striped;

use crate::metrics::writer::MetricsWriter;

/// How a request arrives, and what it is answered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Http,
    Grpc,
    Resp,
    Proxy,
    /// On the listener `http`.
    ForwardAuth,
    /// On the listener `grpc`.
    ExtAuthz,
}

/// How a request was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestStatus {
    Http(StatusCode),
    /// A status code of gRPC.
    Grpc(u8),
    /// The overall code of Envoy's rate limit service; such a call succeeds.
    OverLimit,
    Resp(RespStatus),
}

/// How a command of the Redis protocol was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RespStatus {
    Ok,
    /// A limit denied it.
    Limited,
    Error,
}

/// Statuses with a value of their own; others are counted by class, such as `4xx`.
const HTTP: [(u16, &str); 30] = [
    (101, "101"),
    (200, "200"),
    (201, "201"),
    (202, "202"),
    (204, "204"),
    (206, "206"),
    (301, "301"),
    (302, "302"),
    (303, "303"),
    (304, "304"),
    (307, "307"),
    (308, "308"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (409, "409"),
    (412, "412"),
    (413, "413"),
    (415, "415"),
    (421, "421"),
    (422, "422"),
    (429, "429"),
    (431, "431"),
    (500, "500"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// The names of the status codes of gRPC, by number.
const GRPC: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
const RESP: [&str; 3] = ["ok", "limited", "error"];

/// The first index of each kind of status.
const FIRST_CLASS: usize = HTTP.len();
const FIRST_GRPC: usize = FIRST_CLASS + CLASSES.len();
const OVER_LIMIT: usize = FIRST_GRPC + GRPC.len();
const FIRST_RESP: usize = OVER_LIMIT + 1;
const STATUSES: usize = FIRST_RESP + RESP.len();

impl Transport {
    const ALL: [Transport; 6] = [
        Transport::Http,
        Transport::Grpc,
        Transport::Resp,
        Transport::Proxy,
        Transport::ForwardAuth,
        Transport::ExtAuthz,
    ];

    fn name(self) -> &'static str {
        match self {
            Transport::Http => "http",
            Transport::Grpc => "grpc",
            Transport::Resp => "resp",
            Transport::Proxy => "proxy",
            Transport::ForwardAuth => "forward_auth",
            Transport::ExtAuthz => "ext_authz",
        }
    }

    /// The statuses that are shown before the first request: otherwise the first one would be missing from rates.
    fn usual(self) -> [RequestStatus; 2] {
        match self {
            Transport::Grpc => [RequestStatus::Grpc(0), RequestStatus::OverLimit],
            Transport::Resp => [RespStatus::Ok, RespStatus::Limited].map(RequestStatus::Resp),
            _ => [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].map(RequestStatus::Http),
        }
    }
}

impl RequestStatus {
    fn index(self) -> usize {
        match self {
            RequestStatus::Http(status) => {
                let code = status.as_u16();
                HTTP.binary_search_by_key(&code, |(known, _)| *known).unwrap_or_else(|_| {
                    let class = usize::from(code / 100).clamp(1, CLASSES.len());
                    FIRST_CLASS + class - 1
                })
            }
            RequestStatus::Grpc(code) => FIRST_GRPC + usize::from(code).min(GRPC.len() - 1),
            RequestStatus::OverLimit => OVER_LIMIT,
            RequestStatus::Resp(status) => FIRST_RESP + status as usize,
        }
    }
}

fn name_of(index: usize) -> &'static str {
    match index {
        0..FIRST_CLASS => HTTP[index].1,
        FIRST_CLASS..FIRST_GRPC => CLASSES[index - FIRST_CLASS],
        FIRST_GRPC..OVER_LIMIT => GRPC[index - FIRST_GRPC],
        OVER_LIMIT => "OVER_LIMIT",
        _ => RESP[index - FIRST_RESP],
    }
}

#[derive(Default)]
pub struct RequestCounts(Striped<RequestStripe>);

struct RequestStripe([[AtomicU64; STATUSES]; Transport::ALL.len()]);

impl Default for RequestStripe {
    fn default() -> RequestStripe {
        RequestStripe(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl RequestCounts {
    pub fn add(&self, transport: Transport, status: RequestStatus, count: u64) {
        // Relaxed: nothing else is inferred from these values.
        self.0.current().0[transport as usize][status.index()].fetch_add(count, Ordering::Relaxed);
    }

    /// All requests of a transport.
    pub(super) fn total(&self, transport: Transport) -> u64 {
        (0..STATUSES).map(|index| self.get(transport, index)).sum()
    }

    fn get(&self, transport: Transport, index: usize) -> u64 {
        self.0.iter().map(|stripe| stripe.0[transport as usize][index].load(Ordering::Relaxed)).sum()
    }
}

impl MetricsWriter<'_> {
    pub(super) fn requests(&mut self, requests: &RequestCounts) -> fmt::Result {
        let help = "Requests that were answered, by transport and status.";
        let mut answered = self.counters("tollgate_requests_total", help)?;
        for transport in Transport::ALL {
            let usual = transport.usual().map(RequestStatus::index);
            for index in 0..STATUSES {
                let count = requests.get(transport, index);
                if count > 0 || usual.contains(&index) {
                    answered.sample(&[("transport", transport.name()), ("status", name_of(index))], count)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_name_and_few_have_their_own() {
        let name =
            |code: u16| name_of(RequestStatus::Http(StatusCode::from_u16(code).expect("a status")).index());
        for (code, known) in HTTP {
            assert_eq!((name(code), known), (known, &*code.to_string()));
        }
        assert_eq!([103, 226, 300, 418, 499, 599].map(name), ["1xx", "2xx", "3xx", "4xx", "4xx", "5xx"]);
        assert_eq!(name(999), "5xx", "an upstream may send what is not in a class");
        assert_eq!(
            [0, 3, 16].map(|code| name_of(RequestStatus::Grpc(code).index())),
            ["OK", "INVALID_ARGUMENT", "UNAUTHENTICATED"]
        );
        assert_eq!(name_of(RequestStatus::OverLimit.index()), "OVER_LIMIT");
        let resp = [RespStatus::Ok, RespStatus::Limited, RespStatus::Error];
        assert_eq!(resp.map(|status| name_of(RequestStatus::Resp(status).index())), RESP);
    }
}
