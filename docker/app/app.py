#!/usr/bin/env python3
"""An application without state, for use behind Gatehouse.

It needs nothing but Python's standard library and keeps nothing between two
requests: who is signed in, it reads from the Gatehouse-* request headers; what
shall happen to sessions, it says in Gatehouse-* response headers; uploads
arrive whole, in one ordinary POST. It believes those headers, so it must be
reachable through the gateway alone.
"""

import base64
import hashlib
import html
import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

NAME = re.compile(r"[a-z]{1,20}")
LARGEST_FORM = 64 * 1024

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>An application without state</title>
<h1>An application without state</h1>
{body}
<p>This answer came through the gateway <strong>{gateway}</strong>.</p>
"""

STRANGER = """
<form method="post" action="/sign-in">
  <label>Name, 1 to 20 letters from a to z: <input name="name" required pattern="[a-z]{1,20}"></label>
  <button>Sign in</button>
</form>
"""

SIGNED_IN = """
<p>You are <strong>{user}</strong>; your session is <code>{session}</code>, your claims are <code>{claims}</code>.</p>
<form method="post" action="/sign-out"><button>Sign out</button></form>
<form method="post" action="/sign-out-everywhere"><button>Sign out everywhere</button></form>
<p>Large files go to <code>/files</code> with any tus client; the application answers with their SHA-256.</p>
"""


class BadRequest(Exception):
    """The request cannot be read."""


class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "app"
    timeout = 120  # seconds without a byte
    disable_nagle_algorithm = True

    # Which method answers which request. {"GET /": method name}
    routes = {
        "GET /": "index",
        "POST /sign-in": "sign_in",
        "POST /sign-out": "sign_out",
        "POST /sign-out-everywhere": "sign_out_everywhere",
        "GET /api/whoami": "whoami",
        "GET /api/limited": "limited",
        "POST /files": "uploaded",
    }

    def handle_request(self):
        self.parts = urlsplit(self.path)
        method = "GET" if self.command == "HEAD" else self.command
        name = self.routes.get(f"{method} {self.parts.path}", "missing")
        self.unread = self.body()
        try:
            getattr(self, name)()
        except BadRequest as error:
            self.close_connection = True
            self.answer_json(400, {"error": str(error)})
        self.finish_body()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

    def finish_body(self):
        """Reads what a page did not want, for the connection is used again."""
        try:
            for _ in self.unread:
                pass
        except BadRequest:
            self.close_connection = True

    # ------------------------------------------------------------- the pages

    def missing(self):
        self.answer_json(404, {"error": "there is nothing here"})

    def index(self):
        user = self.user()
        body = STRANGER
        if user:
            body = SIGNED_IN.format(
                user=html.escape(user),
                session=html.escape(self.headers.get("Gatehouse-Session", "")),
                claims=html.escape(json.dumps(self.claims())),
            )
        page = PAGE.replace("{body}", body).replace("{gateway}", html.escape(self.headers.get("X-Gateway", "?")))
        self.answer(200, page.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def sign_in(self):
        name = self.form().get("name", "")
        if not NAME.fullmatch(name):  # a real application checks a password
            return self.answer_json(422, {"error": "a name is 1 to 20 letters from a to z"})
        start = {"user": name, "claims": {"role": "visitor"}}
        self.after_form({"Gatehouse-Session-Start": json.dumps(start)})

    def sign_out(self):
        self.after_form({"Gatehouse-Session-End": "current"})

    def sign_out_everywhere(self):
        self.after_form({"Gatehouse-Session-End": "user"})

    def whoami(self):
        self.answer_json(200, {
            "user": self.user(),
            "claims": self.claims(),
            "session": self.headers.get("Gatehouse-Session", ""),
            "state": self.headers.get("Gatehouse-Session-State", ""),
        })

    def limited(self):
        self.answer_json(200, {"message": "There was room for this request."})

    def uploaded(self):
        if "Gatehouse-Upload-Id" not in self.headers:
            return self.answer_json(400, {"error": "this is no upload from the gateway"})
        digest, length = hashlib.sha256(), 0
        for block in self.unread:
            digest.update(block)
            length += len(block)
        self.answer_json(201, {
            "id": self.headers["Gatehouse-Upload-Id"],
            "user": self.user(),
            "type": self.headers.get("Content-Type", ""),
            "length": length,
            "sha256": digest.hexdigest(),
        }, {"X-Stored": digest.hexdigest()})

    # --------------------------------------------------- what the gateway says

    def user(self):
        """The signed-in user, or an empty string."""
        return unquote(self.headers.get("Gatehouse-User", ""))

    def claims(self):
        encoded = self.headers.get("Gatehouse-Claims", "")
        return json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))) if encoded else {}

    # ----------------------------------------------------- requests and answers

    def body(self):
        """Yields the body block by block, whatever its framing."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            yield from self.chunked_body()
            return
        try:
            left = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            raise BadRequest("Content-Length is no number") from None
        while left > 0:
            block = self.rfile.read(min(left, 256 * 1024))
            if not block:
                raise BadRequest("the body ended early")
            left -= len(block)
            yield block

    def chunked_body(self):
        self.trailers = []
        while True:
            try:
                left = int(self.rfile.readline(1024).split(b";")[0], 16)
            except ValueError:
                raise BadRequest("a chunk has no length") from None
            if left == 0:
                break
            while left > 0:
                block = self.rfile.read(min(left, 256 * 1024))
                if not block:
                    raise BadRequest("the body ended early")
                left -= len(block)
                yield block
            self.rfile.readline(8)
        while (line := self.rfile.readline(64 * 1024)) not in (b"\r\n", b"\n", b""):
            self.trailers.append(line.decode("latin-1").strip())

    def form(self):
        """The form's fields, from the body or the query; the last one counts."""
        raw = b""
        for block in self.unread:
            raw += block
            if len(raw) > LARGEST_FORM:
                raise BadRequest("the form is too large")
        fields = parse_qs(self.parts.query) | parse_qs(raw.decode("utf-8", "replace"))
        return {name: values[-1] for name, values in fields.items()}

    def after_form(self, headers):
        """Sends a browser that posted a form back to the page."""
        if "text/html" in self.headers.get("Accept", ""):
            self.answer(303, b"", headers | {"Location": "/"})
        else:
            self.answer(204, b"", headers)

    def answer_json(self, status, value, headers=None):
        body = json.dumps(value, indent=2).encode() + b"\n"
        self.answer(status, body, {"Content-Type": "application/json"} | (headers or {}))

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format, *args):
        if os.environ.get("APP_LOG"):
            super().log_message(format, *args)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def serve(handler):
    """Serves on the address in the arguments, default 0.0.0.0:3000."""
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "0.0.0.0:3000").rpartition(":")
    server = Server((host, int(port)), handler)
    print(f"listening on {host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    serve(Application)
