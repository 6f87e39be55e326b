"""An API that answers with what it was told about the client."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body go out together

    def answer(self):
        length = int(self.headers.get("content-length", 0))
        seen = {
            "method": self.command,
            "path": self.path,
            "body": self.rfile.read(length).decode(),
            "x-forwarded-for": ", ".join(self.headers.get_all("x-forwarded-for", [])),
        }
        body = json.dumps(seen).encode() + b"\n"
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = answer

    def log_message(self, *_):
        pass


ThreadingHTTPServer.request_queue_size = 128  # connections that wait: 5 by default
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
