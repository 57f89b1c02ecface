"""A package index of static files (PEP 503) with the wheel of this tree. Other packages come from the default index."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def fill(folder: Path, wheel: Path) -> str:
    """Adds a wheel to the index in ``folder``. Returns the SHA-256 digest of the wheel in hexadecimal."""
    content = wheel.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    project = folder / "simple" / wheel.name.partition("-")[0].replace("_", "-")
    project.mkdir(parents=True)
    (project / wheel.name).write_bytes(content)
    (project / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>\n')
    return digest


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves the index in ``folder`` and yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_SilentHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
