"""A server is killed at each line that a client's way through it takes; the client comes back and gets its answer.

The way is that of a client and a worker: keys, a job, its result, and its end. It is gone in a process that ends, as by
kill -9, at the n-th line of `heliograph/serving`; then it is gone again from the start, as by a client that died too.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers.sites import put
from runtime.support import sample, toy_artifact

import heliograph as hg
import heliograph.serving
from heliograph.artifact.container import digest_of
from heliograph.files import write_file
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.serving.queue.settings import Limits
from heliograph.serving.queue.tenants import stored_bytes
from heliograph.serving.site import Site, SiteSettings

HERE = str(Path(heliograph.serving.__file__).parent)
MODEL = toy_artifact().fingerprint
JOB, RESULT = "a" * 32, b"the answer"
OPENING = ("site.py", "catalog.py", "settings.py", "plaintexts.py")


class Way:
    """The way through a server on a folder, with the client's files."""

    def __init__(self, artifact_file: Path, client: hg.Client, keys: hg.EvaluationKeys) -> None:
        self.artifact_file, self.client = artifact_file, client.id
        # Two keys are enough to be gone through.
        self.keys = {
            name: b"".join(key_parts(MODEL, client.id, name, keys.blob(name))) for name in sorted(keys.names())[:2]
        }
        self.input = client.encrypt(sample()).to_bytes()

    def site(self, folder: Path) -> Site:
        return Site(
            SiteSettings([self.artifact_file], folder, memory_bytes=1 << 31, allow_insecure=True, limits=Limits())
        )

    def go(self, site: Site) -> None:
        site._sweep.settle()
        site.jobs.release()
        expected = {name: site.catalog[MODEL].keys[name] for name in self.keys}
        state = site.keysets.begin(1, MODEL, self.client, expected)
        for name in state.missing:
            assert site.keysets.taken(1, MODEL, self.client, name, expected) is None
            with put(site, self.keys[name]) as upload:
                state = site.keysets.take(1, MODEL, self.client, name, upload, expected)
        assert state.complete
        asked = 1, JOB, MODEL, self.client, digest_of(self.input)
        record = site.expected(*asked)
        if isinstance(record, int):
            with put(site, self.input) as upload:
                record = site.submit(*asked, upload)
        while record.state != "done":
            claim = site.jobs.claim("worker")
            assert claim is not None
            assert site.places.input(claim.input).read_bytes() == self.input
            assert set(self.keys) <= {
                each.stem.replace("-", "/") for each in site.places.keyset(claim.folder).iterdir()
            }
            name = f"{claim.number}-{'b' * 16}"
            write_file(site.places.result(name), RESULT)
            assert site.jobs.finish("worker", claim.number, name, 1)
            record = site.jobs.record(1, JOB)
        assert site.jobs.result(1, JOB).read_bytes() == RESULT
        site.jobs.fetched(1, JOB)
        site.jobs.delete(1, JOB)


def lines_until(limit: int) -> Any:
    """A tracer that ends the process at the line of that number; `seen` has how many there were."""
    seen = [0]

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(HERE) or path.endswith(OPENING):
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == limit:
                os._exit(9)
        return trace

    trace.seen = seen  # type: ignore[attr-defined]
    return trace


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 23], ids=["every line", "some"])
def test_kills_lose_nothing(
    step: int, artifact_file: Path, client: hg.Client, keys: hg.EvaluationKeys, tmp_path: Path
) -> None:
    way = Way(artifact_file, client, keys)
    site = way.site(tmp_path / "counted")
    trace = lines_until(-1)
    sys.settrace(trace)
    try:
        way.go(site)
    finally:
        sys.settrace(None)
    left = stored_bytes(site.database.reading(), 1)
    site.close()
    (count,) = trace.seen
    assert count > 200
    for line in range(1, count, step):
        folder = tmp_path / str(line)
        child = os.fork()
        if not child:
            # The child begins with a server of its own; nothing of the parent's is used but the bytes that are sent.
            try:
                site = way.site(folder)
                sys.settrace(lines_until(line))
                way.go(site)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, line
        site = way.site(folder)
        way.go(site)
        # Nothing is left over, on the disk or in the accounts.
        assert stored_bytes(site.database.reading(), 1) == left, line
        assert os.listdir(site.places.inputs) == os.listdir(site.places.results) == [], line
        assert os.listdir(site.places.uploads) == [], line
        assert len(os.listdir(site.places.keys)) == 1, line
        site.close()
        shutil.rmtree(folder)
