"""Calls a node over TLS by clients of others: grpcio, and redis-py with ssl=True. The arguments are the ports of grpc and
resp, the file of the authority, and the client's certificate and key if it has one. Prints what each was answered."""

import sys

import grpc
import redis
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

grpc_port, resp_port, authority, *own = sys.argv[1:]


def read(path):
    with open(path, "rb") as file:
        return file.read()


certificate, key = (read(own[0]), read(own[1])) if own else (None, None)
credentials = grpc.ssl_channel_credentials(read(authority), key, certificate)
with grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel:
    entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="user", value="ann")
    descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry])
    request = rls_pb2.RateLimitRequest(domain="shop", descriptors=[descriptor])
    try:
        answer = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request)
        print("grpc", rls_pb2.RateLimitResponse.Code.Name(answer.overall_code))
    except grpc.RpcError as error:
        print("grpc", error.code().name)

client = redis.Redis(
    host="localhost",
    port=int(resp_port),
    ssl=True,
    ssl_ca_certs=authority,
    ssl_certfile=own[0] if own else None,
    ssl_keyfile=own[1] if own else None,
)
try:
    print("resp", client.execute_command("CL.THROTTLE", "a", 4, 5, 3600)[:3])
except redis.ConnectionError:
    print("resp", "refused")
