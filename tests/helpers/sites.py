"""A server's site without workers or HTTP, and what requests would put into it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import digest_of
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.serving.queue.settings import Limits
from heliograph.serving.queue.uploads import Upload
from heliograph.serving.site import Site, SiteSettings


def site(artifact_file: Path, folder: Path, limits: Limits) -> Site:
    return Site(SiteSettings([artifact_file], folder, memory_bytes=1 << 31, allow_insecure=True, limits=limits))


def filled(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> str:
    """The job of a tenant 1 with keys, as requests would make it; no worker runs."""
    register(site, client, keys)
    return submit(site, client.encrypt(sample()))


def register(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    """A tenant 1 sends all keys, of which none is there."""
    fingerprint = toy_artifact().fingerprint
    expected = site.catalog[fingerprint].keys
    assert site.keysets.begin(1, fingerprint, client.id, expected).missing == tuple(sorted(expected))
    for name in expected:
        with put(site, b"".join(key_parts(fingerprint, client.id, name, keys.blob(name)))) as upload:
            record = site.keysets.take(1, fingerprint, client.id, name, upload, expected)
    assert record.complete


def submit(site: Site, encrypted: hg.EncryptedInput, tenant: int = 1) -> str:
    """The job of these inputs, as a request for it is answered."""
    data = encrypted.to_bytes()
    asked = tenant, encrypted.request, encrypted.artifact, encrypted.client, digest_of(data)
    most = site.expected(*asked)
    assert isinstance(most, int)
    with put(site, data, tenant, most) as upload:
        return site.submit(*asked, upload).id


@contextlib.contextmanager
def put(site: Site, data: bytes, tenant: int = 1, most: int = 1 << 30) -> Iterator[Upload]:
    """The whole body of a request, as `received` has it."""
    upload = site.uploads.begin(tenant, len(data), most)
    try:
        upload.write(data)
        upload.finish()
        yield upload
    finally:
        upload.close()


def old_queue(path: Path) -> None:
    """A queue as the first version made it, with a tenant and a job that runs."""
    with sqlite3.connect(path) as connection:
        connection.executescript((Path(__file__).parents[1] / "serving" / "queue_1.sql").read_text())
