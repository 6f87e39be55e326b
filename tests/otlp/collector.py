"""A collector: it accepts OTLP over HTTP, and reads it with the messages that OpenTelemetry publishes."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

MESSAGES = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}


def reject_unknown_fields(message) -> None:
    """A field that is not in the definition is a mistake of the sender."""
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    assert not unknown, f"{message.DESCRIPTOR.full_name} has no fields {unknown}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                reject_unknown_fields(part)


class Collector:
    def __init__(self, port: int = 0, tls: tuple | None = None, path: str = ""):
        self.requests: list[tuple[str, object, dict]] = []
        self.problems: list[str] = []
        # Statuses of the next responses; then 200.
        self.statuses: list[int] = []
        self.is_silent = threading.Event()
        self.released = threading.Event()
        self.is_closed = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                if collector.is_closed.is_set():  # a connection that is still open
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.is_silent.is_set():
                    collector.released.wait(60)
                status = collector.statuses.pop(0) if collector.statuses else 200
                answer = collector.receive(self.path.removeprefix(path), body, dict(self.headers), status)
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                try:
                    self.wfile.write(answer)
                except OSError:
                    pass  # a node that has stopped does not wait for it

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.port = self.server.server_address[1]
        self.endpoint = f"{scheme}://localhost:{self.port}{path}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def receive(self, path: str, body: bytes, headers: dict, status: int) -> bytes:
        request, response = MESSAGES[path]
        try:
            message = request.FromString(body)
            reject_unknown_fields(message)
            assert headers["content-type"] == "application/x-protobuf", headers
        except Exception as error:  # a handler's exception would only close the connection
            self.problems.append(f"{path}: {error}")
        else:
            if status == 200:
                self.requests.append((path, message, {name.lower(): value for name, value in headers.items()}))
        return response().SerializeToString()

    def close(self) -> None:
        self.is_closed.set()
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def spans(self) -> list:
        resources = [each for path, message, _ in list(self.requests) if path == "/v1/traces" for each in message.resource_spans]
        return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]

    def metrics(self) -> dict:
        """The latest metrics by name."""
        messages = [message for path, message, _ in list(self.requests) if path == "/v1/metrics"]
        scopes = [scope for each in messages[-1:] for resource in each.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


def attributes(owner) -> dict:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in owner.attributes}
