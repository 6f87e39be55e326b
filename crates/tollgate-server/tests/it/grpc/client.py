"""Calls a gRPC listener with a rule of 3 a minute for each user, by clients that were not written for it."""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
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


with grpc.insecure_channel(sys.argv[1]) as channel:
    rate_limits(channel)
    health(channel)
    reflection(channel)
