"""Calls a gRPC listener with a rule of 3 a minute for each user and one of 1 login a day for each address, by clients that
were not written for it."""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def request(user):
    entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="user", value=user)
    descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry])
    return rls_pb2.RateLimitRequest(domain="shop", descriptors=[descriptor])


def rate_limits(channel):
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    response = rls_pb2.RateLimitResponse
    for remaining in (2, 1, 0):
        answer = stub.ShouldRateLimit(request("ann"))
        assert answer.overall_code == response.OK, answer
        status = answer.statuses[0]
        assert status.limit_remaining == remaining, answer
        assert status.current_limit.name == "per-user", answer
        assert status.current_limit.unit == response.RateLimit.MINUTE, answer
    answer = stub.ShouldRateLimit(request("ann"))
    assert answer.overall_code == response.OVER_LIMIT, answer
    assert any(header.key == "retry-after" for header in answer.response_headers_to_add), answer
    assert answer.statuses[0].duration_until_reset.seconds > 0, answer
    try:
        stub.ShouldRateLimit(rls_pb2.RateLimitRequest(domain="shop"))
        raise AssertionError("no descriptors are an error")
    except grpc.RpcError as error:
        assert error.details() == "rate limit descriptor list must not be empty", error


def refund(channel):
    """A refund of hits, whose field is newer than the published messages (RateLimitDescriptor.is_negative_hits = 4)."""
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    for hits, remaining in ((2, 2), (100, 3)):
        asked = request("ann")
        asked.descriptors[0].hits_addend.value = hits
        asked.descriptors[0].MergeFromString(b"\x20\x01")
        answer = stub.ShouldRateLimit(asked)
        assert answer.overall_code == rls_pb2.RateLimitResponse.OK, answer
        assert answer.statuses[0].limit_remaining == remaining, answer


def described(address, method, path, headers=()):
    check = external_auth_pb2.CheckRequest()
    check.attributes.source.address.socket_address.address = address
    http = check.attributes.request.http
    http.method, http.path, http.host = method, path, "shop.example"
    http.headers.update({":method": method, ":path": path, ":authority": "shop.example", **dict(headers)})
    return check


def authorization(channel):
    stub = external_auth_pb2_grpc.AuthorizationStub(channel)
    passed = stub.Check(described("203.0.113.7", "POST", "/login?next=/"))
    assert passed.status.code == 0 and passed.HasField("ok_response"), passed
    names = [option.header.key for option in passed.ok_response.response_headers_to_add]
    assert names == ["ratelimit-policy", "ratelimit"], passed
    denied = stub.Check(described("203.0.113.7", "POST", "/login"))
    assert denied.status.code == 7 and denied.denied_response.status.code == 429, denied
    headers = {option.header.key: option.header.value for option in denied.denied_response.headers}
    assert int(headers["retry-after"]) > 0 and headers["content-type"] == "application/problem+json", denied
    assert '"status":429' in denied.denied_response.body, denied
    assert stub.Check(described("203.0.113.8", "POST", "/login")).HasField("ok_response")
    assert stub.Check(described("203.0.113.7", "GET", "/login")).HasField("ok_response")
    page = stub.Check(described("203.0.113.7", "POST", "/login", {"accept": "text/html"}))
    assert page.denied_response.body.startswith("<!doctype html>"), page


def health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="unknown"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def reflection(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    service = "envoy.service.ratelimit.v3.RateLimitService"
    assert service in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName(service).FindMethodByName("ShouldRateLimit")
    kind = message_factory.GetMessageClass(method.input_type)
    call = channel.unary_unary(
        f"/{service}/ShouldRateLimit",
        request_serializer=kind.SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    asked = kind(domain="shop")
    asked.descriptors.add().entries.add(key="user", value="bob")
    assert call(asked).statuses[0].limit_remaining == 2
    asked.descriptors[0].is_negative_hits = True
    assert call(asked).statuses[0].limit_remaining == 3
    service = "envoy.service.auth.v3.Authorization"
    assert service in database.get_services()
    check = pool.FindServiceByName(service).FindMethodByName("Check")
    described = message_factory.GetMessageClass(check.input_type)()
    described.attributes.request.http.headers["a"] = "b"
    published = external_auth_pb2.CheckRequest.FromString(described.SerializeToString())
    assert published.attributes.request.http.headers == {"a": "b"}, published


with grpc.insecure_channel(sys.argv[1]) as channel:
    rate_limits(channel)
    refund(channel)
    authorization(channel)
    health(channel)
    reflection(channel)
