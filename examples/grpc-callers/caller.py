"""Asks Tollgate over gRPC, with a deadline. Without an answer the caller fails open or closed.

    echo '{"user":"42"}' | python3 caller.py open 100 127.0.0.1:8081 10.0.0.2:8081

Reads the attributes of a request from each line of stdin, and writes a verdict for each. Arguments: open or closed, the
deadline in milliseconds, and the nodes, nearest first. TOLLGATE_TOKEN is sent if it is set. Needs grpcio, and Envoy's
messages (xds-protos). A `Caller` may be shared by threads.
"""
import json
import os
import sys
from dataclasses import asdict, dataclass, field

import grpc
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

OPTIONS = {
    "grpc.default_authority": "tollgate",  # a list of addresses, the default here, is not a valid host
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.min_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 1_000,  # 120 s by default, during which no node is asked
    "grpc.keepalive_time_ms": 10_000,  # a frozen node is given up, and the next one is asked
    "grpc.keepalive_timeout_ms": 1_000,
    "grpc.enable_http_proxy": 0,
}


@dataclass
class Verdict:
    allowed: bool
    decided: bool  # by Tollgate; otherwise this is how the caller fails
    status: int  # for the client: 200, 429 or 503
    reason: str
    headers: dict = field(default_factory=dict)  # for the client: RateLimit, Retry-After, Tollgate-Ticket


class Caller:
    def __init__(self, nodes, deadline, fail_open, token=None, domain="shop"):
        """`deadline` is in seconds. gRPC keeps a connection to the first node that accepts, then to the next one."""
        self.stub = RateLimitServiceStub(grpc.insecure_channel("ipv4:" + ",".join(nodes), list(OPTIONS.items())))
        self.deadline, self.fail_open, self.domain = deadline, fail_open, domain
        self.metadata = [("authorization", f"Bearer {token}")] if token else None

    def check(self, attributes) -> Verdict:
        entries = [RateLimitDescriptor.Entry(key=key, value=value) for key, value in attributes.items()]
        request = RateLimitRequest(domain=self.domain, descriptors=[RateLimitDescriptor(entries=entries)])
        try:
            answer = self.stub.ShouldRateLimit(request, timeout=self.deadline, metadata=self.metadata)
        except grpc.RpcError as error:
            why = f"{error.code().name}: {error.details()}"
            return Verdict(self.fail_open, False, 200 if self.fail_open else 503, why)
        headers = {header.key: header.value for header in answer.response_headers_to_add}
        if answer.overall_code == RateLimitResponse.OVER_LIMIT:
            return Verdict(False, True, 429, "over the limit", headers)
        return Verdict(True, True, 200, "ok", headers)


def main():
    failing, deadline_ms, *nodes = sys.argv[1:]
    caller = Caller(nodes, int(deadline_ms) / 1000, failing == "open", os.environ.get("TOLLGATE_TOKEN"))
    for line in sys.stdin:
        print(json.dumps(asdict(caller.check(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
