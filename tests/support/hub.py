"""A Hugging Face hub of a few repositories on localhost, as much of it as snapshot_download asks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GATED = "owner/gated"


class FakeHub(ThreadingHTTPServer):
    """`repositories`: id -> folder with its files; each has the one revision "main"."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.fetched: list[str] = []  # OWNER/NAME/FILE of every content that was sent

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        owner, name, kind, revision, *rest = [*(parts[2:] if is_api else parts), "", "", ""]
        model_id = f"{owner}/{name}"
        folder = self.server.repositories.get(model_id)
        if model_id == GATED:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if folder is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("", "main", COMMIT):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if is_api:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            names = [str(path.relative_to(folder)) for path in files]
            tree = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": COMMIT}
                for name, path in zip(names, files, strict=True)
            ]
            info = {"id": model_id, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            return self._send(200, json.dumps(tree if kind == "tree" else info).encode(), {})
        content = (folder / "/".join(part for part in rest if part)).read_bytes()
        if with_body:
            self.server.fetched.append("/".join([model_id, *(part for part in rest if part)]))
        etag = sha256(content).hexdigest()
        self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body and self.command == "GET":
            self.wfile.write(body)


@contextmanager
def fake_hub(repositories: dict[str, Path]) -> Iterator[FakeHub]:
    hub = FakeHub(repositories)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
