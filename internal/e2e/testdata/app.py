"""The application of docker/app with habits that a gateway must bear: it tells
what it received, puts commands where none belong, and fails on demand."""

import json
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "docker" / "app"))

import app  # noqa: E402

FAILURES = int(os.environ.get("FAIL_UPLOADS", "0"))  # deliveries of an upload that get 503 first

lock = threading.Lock()
deliveries = []


class Application(app.Application):
    routes = app.Application.routes | {
        "GET /early": "early",
        "GET /trailers": "trailers_after_body",
        "GET /deliveries": "show_deliveries",
        "POST /command": "send_fields",
    }

    def missing(self):
        """Tells what arrived: every header and trailer as it was spelled."""
        size = sum(len(block) for block in self.unread)
        self.answer_json(200, {
            "path": self.path,
            "headers": self.headers.items(),
            "trailers": getattr(self, "trailers", []),
            "size": size,
        })

    def send_fields(self):
        """Sends the fields of the query as response headers."""
        self.answer_json(200, {}, self.form())

    def early(self):
        self.wfile.write(
            b"HTTP/1.1 103 Early Hints\r\n"
            b"Link: </style.css>; rel=preload\r\n"
            b'Gatehouse-Session-Start: {"user":"mallory"}\r\n'
            b"gatehouse_session_end: current\r\n"
            b"Gatehouse~User: mallory\r\n\r\n")
        self.answer_json(200, {})

    def trailers_after_body(self):
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\n"
            b"Content-Type: text/plain\r\n"
            b"Transfer-Encoding: chunked\r\n"
            b"Trailer: Gatehouse-Session-Start, X-Plain\r\n\r\n"
            b"5\r\nhello\r\n0\r\n"
            b'Gatehouse-Session-Start: {"user":"mallory"}\r\n'
            b"gatehouse_user: mallory\r\n"
            b"X-Plain: yes\r\n\r\n")

    def uploaded(self):
        name = self.headers.get("Gatehouse-Upload-Id", "")
        with lock:
            before = sum(1 for d in deliveries if d["id"] == name)
            entry = {"id": name, "key": self.headers.get("Idempotency-Key", ""), "user": self.user(), "status": 503}
            deliveries.append(entry)
        if before < FAILURES:
            return self.answer_json(503, {"error": "not now"})
        self.entry = entry
        super().uploaded()

    def answer_json(self, status, value, headers=None):
        if entry := getattr(self, "entry", None):
            with lock:
                entry |= value | {"status": status}
            self.entry = None
        super().answer_json(status, value, headers)

    def show_deliveries(self):
        with lock:
            text = json.dumps(deliveries)
        self.answer(200, text.encode(), {"Content-Type": "application/json"})


app.serve(Application)
