"""Traces and metrics of a real node, as a collector receives them."""

import http.client
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "harness")]

import process  # noqa: E402
from collector import Collector, attributes  # noqa: E402
from node import Node, call  # noqa: E402
from process import wait_until  # noqa: E402

RULES = "rules_db: none\nrules: [{ id: login, key: user, limit: 2/h }]\n"
TRACE = "4bf92f3577b34da6a3ce929d0e0e47"
PARENT = "00f067aa0ba902b7"
CUMULATIVE = 2


def traceparent(number: int, flags: str = "01") -> dict:
    return {"traceparent": f"00-{TRACE}{number:02x}-{PARENT}-{flags}"}


def traced(collector: Collector) -> list[int]:
    """The numbers of the traces that spans were received of."""
    return sorted(span.trace_id[-1] for span in collector.spans())


def start(collector: Collector, more: str = "", config: str = RULES) -> Node:
    return Node(f"otlp: {{ endpoint: '{collector.endpoint}', interval: 1s{more} }}\n{config}")


def counted(node: Node, name: str) -> float:
    lines = node.admin("GET", "/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def spans_of_sampled_decisions_are_exported() -> None:
    collector = Collector(path="/otlp")
    node = start(collector, ", service_name: gate, headers: { api-key: k1 }")
    begun = time.time_ns()
    for number, flags in [(1, "01"), (2, "01"), (3, "01"), (4, "00"), (5, "ff")]:
        call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(number, flags))
    node.check(user="ann")
    wait_until("the spans", lambda: len(collector.spans()) >= 4)
    node.stop()
    assert traced(collector) == [1, 2, 3, 5], traced(collector)
    spans = {span.trace_id[-1]: span for span in collector.spans()}
    assert len({span.span_id for span in spans.values()}) == 4 and all(any(span.span_id) for span in spans.values())
    for span in spans.values():
        assert (span.trace_id[:-1].hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert begun - 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano < time.time_ns() + 10**9
    allowed, denied = attributes(spans[1]), attributes(spans[3])
    assert allowed["tollgate.allowed"] is True and allowed["tollgate.reason"] == "ok", allowed
    assert (allowed["tollgate.rule"], allowed["tollgate.cost"], allowed["tollgate.remaining"]) == ("login", 1, 1), allowed
    assert denied["tollgate.allowed"] is False and denied["tollgate.reason"] == "limit", denied
    assert denied["tollgate.remaining"] == 0 and "ann" not in str(spans), denied
    path, message, headers = next(each for each in collector.requests if each[0] == "/v1/traces")
    assert attributes(message.resource_spans[0].resource)["service.name"] == "gate"
    assert headers["api-key"] == "k1", headers
    assert not collector.problems, collector.problems


def every_transport_with_headers_has_spans() -> None:
    collector = Collector()
    api = Collector()  # any server will do
    config = f"upstreams: ['http://127.0.0.1:{api.port}']\ntrusted_proxies: [127.0.0.1]\n{RULES}"
    node = start(collector, config=config)
    call(node.http, "POST", "/v1/check/batch", [{"user": "a"}, {"user": "b"}], traceparent(1))
    call(node.http, "GET", "/v1/request-allowed?userId=c", None, traceparent(2))
    gateway = {"x-forwarded-method": "GET", "x-forwarded-uri": "/", "x-forwarded-for": "203.0.113.1", "x-forwarded-host": "a"}
    call(node.http, "GET", "/v1/forward-auth", None, {**gateway, **traceparent(3)})
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "d"}]}]}
    call(node.http, "POST", "/json", body, traceparent(4))
    call(node.proxy, "GET", "/", None, traceparent(5))
    node.stop()
    assert traced(collector) == [1, 1, 2, 3, 4, 5], traced(collector)
    assert not collector.problems, collector.problems


def metrics_are_those_of_the_page() -> None:
    collector = Collector()
    node = start(collector)
    node.passed(5, user="ann")

    def point(name: str, kind: str, **labels):
        metric = collector.metrics().get(name)
        points = getattr(metric, kind).data_points if metric else []
        return next((each for each in points if attributes(each) == labels), None)

    wait_until("the decisions", lambda: (found := point("tollgate_decisions_total", "sum", reason="limit")) and found.as_int == 3)
    page = node.admin("GET", "/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}
    exported = collector.metrics()
    for name in names:
        histogram = name.rsplit("_", 1)[0]
        assert name in exported or histogram in exported, f"{name} is not exported"
    decisions = exported["tollgate_decisions_total"].sum
    assert decisions.is_monotonic and decisions.aggregation_temporality == CUMULATIVE
    assert point("tollgate_rule_hits_total", "sum", rule="login", outcome="allowed").as_int == 2
    assert point("tollgate_rules", "gauge").as_int == 1
    assert point("process_cpu_seconds_total", "sum").as_double > 0
    times = point("tollgate_decision_seconds", "histogram")
    assert len(times.bucket_counts) == len(times.explicit_bounds) + 1 == 23
    assert sum(times.bucket_counts) == times.count
    assert point("tollgate_decisions_total", "sum", reason="ok").start_time_unix_nano <= time.time_ns()
    node.stop()
    assert not collector.problems, collector.problems


def the_last_spans_are_exported_at_a_stop() -> None:
    collector = Collector()
    node = start(collector)
    for number in range(20):
        call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(number + 1))
    node.stop()
    assert traced(collector) == list(range(1, 21)), traced(collector)
    assert collector.metrics(), "metrics are sent, too"


def a_collector_that_fails_is_tried_again_and_delays_nothing() -> None:
    collector = Collector()
    node = start(collector)
    collector.statuses = [503] * 2
    call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(1))
    wait_until("the span", lambda: 1 in traced(collector))
    collector.statuses = [400] * 4
    call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(2))
    dropped = 'tollgate_otlp_spans_total{result="dropped"}'
    wait_until("a rejected span is dropped", lambda: counted(node, dropped) == 1)
    collector.statuses = []
    port = collector.port
    collector.close()
    # A full queue drops what does not fit, at once.
    checks = [{"user": "ann"}] * 1000
    answers = [call(node.http, "POST", "/v1/check/batch", checks, traceparent(3)) for _ in range(10)]
    assert all(answer.status == 200 for answer in answers)
    wait_until("spans are dropped", lambda: counted(node, dropped) > 1000)
    assert "were not exported" in node.process.text()
    collector = Collector(port)

    def is_exported() -> bool:
        # The first ones may still find the queue full.
        call(node.http, "POST", "/v1/check", {"user": "bob"}, traceparent(4))
        return 4 in traced(collector)

    wait_until("spans are exported again", is_exported)
    node.stop()


def a_silent_collector_does_not_delay_a_stop() -> None:
    collector = Collector()
    collector.is_silent.set()
    node = start(collector)
    call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(1))
    connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=30)
    connection.request("POST", "/v1/check", '{"user":"ann"}')
    assert connection.getresponse().status == 200
    node.stop()
    assert "not accepted" in node.process.text(), node.process.text()[-500:]
    collector.close()


def a_collector_over_https_is_verified() -> None:
    folder = process.folder("tls")
    certificate, key = folder / "front.pem", folder / "front.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=front", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    collector = Collector(tls=(certificate, key))
    for trusted, expected in [("/etc/ssl/certs/ca-certificates.crt", []), (str(certificate), [1])]:
        os.environ["SSL_CERT_FILE"] = trusted
        node = start(collector)
        call(node.http, "POST", "/v1/check", {"user": "ann"}, traceparent(1))
        node.stop()
        assert traced(collector) == expected, (trusted, node.process.text()[-500:])
    del os.environ["SSL_CERT_FILE"]


CASES = [
    spans_of_sampled_decisions_are_exported,
    every_transport_with_headers_has_spans,
    metrics_are_those_of_the_page,
    the_last_spans_are_exported_at_a_stop,
    a_collector_that_fails_is_tried_again_and_delays_nothing,
    a_silent_collector_does_not_delay_a_stop,
    a_collector_over_https_is_verified,
]


def main(words: list[str]) -> int:
    failed = 0
    for case in CASES:
        if words and not any(word in case.__name__ for word in words):
            continue
        try:
            case()
        except Exception:
            traceback.print_exc()
            failed += 1
            print(f"FAIL  {case.__name__}")
        else:
            print(f"PASS  {case.__name__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
