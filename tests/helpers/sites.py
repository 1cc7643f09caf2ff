"""A server's site without workers or HTTP, and what requests would put into it."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.serving.queue.settings import Limits
from heliograph.serving.site import Site, SiteSettings


def site(artifact_file: Path, folder: Path, limits: Limits) -> Site:
    return Site(SiteSettings([artifact_file], folder, memory_bytes=1 << 31, allow_insecure=True, limits=limits))


def filled(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> str:
    """The job of a tenant 1 with keys, as requests would make it; no worker runs."""
    fingerprint = toy_artifact().fingerprint
    expected = site.catalog[fingerprint].keys
    assert site.keysets.begin(1, fingerprint, client.id, expected).missing == sorted(expected)
    for name in expected:
        digest = put(site, b"".join(key_parts(fingerprint, client.id, name, keys.blob(name))))
        record = site.keysets.take(1, fingerprint, client.id, name, digest, expected)
    assert record.complete
    encrypted = client.encrypt(sample())
    digest = put(site, encrypted.to_bytes())
    site.submit(1, encrypted.request, fingerprint, client.id, digest)
    return encrypted.request


def put(site: Site, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    site.uploads.begin(1, digest, len(data))
    part = site.uploads.part(1, digest, 0)
    part.write(data)
    part.close()
    assert site.uploads.complete(1, digest).complete
    return digest


def old_queue(path: Path) -> None:
    """A queue as the first version made it, with a tenant and a job that runs."""
    with sqlite3.connect(path) as connection:
        connection.executescript((Path(__file__).parents[1] / "serving" / "queue_1.sql").read_text())
