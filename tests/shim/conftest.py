"""Real ranks for the tests of the torch backend: one fork server for all of them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opus_sdn.demo.launcher import Zygote


@pytest.fixture(scope="session")
def ranks() -> Iterator[Zygote]:
    """A fork server with torch imported; ranks forked from it start in milliseconds."""
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context for 127.0.0.1, and the file by which a client knows it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, public = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", public),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    return context, public
