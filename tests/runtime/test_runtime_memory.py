"""Peaks of real processes beside those predicted: keys in one file and in a folder, with bootstraps and without."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.cli.main import main
from heliograph.errors import TooLittleMemoryError
from heliograph.execution.key_use import key_use
from heliograph.execution.memory import key_making_bytes, memory_bytes
from heliograph.runtime import memory
from heliograph.runtime.client import client as client_module
from heliograph.runtime.server import server as server_module
from heliograph.runtime.server.server import require_server
from heliograph.tools.measure import measure

REFRESHED = """program refreshed
input x: secret slots[64] in [-1, 1]
y = bootstrap(x * x - rotate(x, 3))
z = bootstrap(y * y - rotate(y, 9) + rotate(y, 4))
output w = z * z - rotate(z, 1)
"""
PLAIN = """program plain
input x: secret slots[64] in [-1, 1]
y = x * x - rotate(x, 3) + rotate(x, 5) + rotate(x, 17)
output w = y * y - rotate(y, 1) + rotate(y, 11)
"""
# One key, and many plaintexts: a server takes more than making the keys.
WEIGHTY = """program weighty
input x: secret slots[8] in [-1, 1]
y = x * x
output z = """ + " + ".join(f"y * {[(7 * i + 3 * j) % 41 / 164 for j in range(8)]}" for i in range(41))
# One process each, as they are used: no torch, no other work.
_ROLES = """
    import sys
    from pathlib import Path
    import numpy as np
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.public import PublicArtifact
    from heliograph.tools.measure import peak_rss_bytes
    role, ways, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    keys = folder / ways
    if role == "client":
        from heliograph.runtime.client.client import Client
        client = Client(PublicArtifact.load(folder / "public"), allow_insecure=True)
        if ways == "folder":
            client.write_evaluation_keys(keys)
        else:
            client.evaluation_keys().save(keys)
        client.encrypt(np.load(folder / "x.npy")).save(folder / f"{ways}-input")
    else:
        from heliograph.runtime.wire.keyfolder import load_keys
        from heliograph.runtime.wire.messages import EncryptedInput
        from heliograph.runtime.server.server import Server
        with Server(Artifact.load(folder / "artifact"), load_keys(keys), allow_insecure=True) as server:
            for _ in range(2):
                server.run(EncryptedInput.load(folder / f"{ways}-input"))
    print(peak_rss_bytes())
"""


def peak(role: str, ways: str, folder: Path) -> int:
    command = [sys.executable, "-c", textwrap.dedent(_ROLES), role, ways, str(folder)]
    return int(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(REFRESHED), hg.Options(security_bits=None, log_ring=12))


@pytest.mark.parametrize(("source", "log_ring"), [(REFRESHED, 12), (REFRESHED, 11), (PLAIN, 13)])
def test_peaks_are_as_predicted(source: str, log_ring: int, tmp_path: Path) -> None:
    artifact = hg.compile(hg.parse(source), hg.Options(security_bits=None, log_ring=log_ring))
    artifact.save(tmp_path / "artifact")
    artifact.public().save(tmp_path / "public")
    np.save(tmp_path / "x.npy", np.linspace(-0.5, 0.5, 64))
    predicted = memory_bytes(artifact.program, artifact.ring)
    for ways in ("file", "folder"):
        for role in ("client", "server"):
            measured = peak(role, ways, tmp_path)
            assert 1 / 1.3 < measured / predicted[f"{role}_{ways}"] < 1.3, (role, ways, measured, predicted)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The evaluation keys that are made."""
    keys: list[object] = []
    original = client_module.Cryptor.evaluation_key_bytes
    monkeypatch.setattr(
        client_module.Cryptor,
        "evaluation_key_bytes",
        lambda self, key, *more: keys.append(key) or original(self, key, *more),
    )
    return keys


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let this many bytes be available."""

    def set_bytes(count: int) -> None:
        for module in ("memory", "server.server"):
            monkeypatch.setattr(f"heliograph.runtime.{module}.available_bytes", lambda: count)

    return set_bytes


def test_what_does_not_fit_is_refused_before_it_is_begun(
    artifact: hg.Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[object],
    leave: Callable[[int], None],
) -> None:
    """A folder needs less than a file; both are refused where even that is not there."""
    client = hg.Client(artifact.public(), allow_insecure=True)
    one_by_one, together = (key_making_bytes(artifact.evaluation_keys, way) for way in (True, False))
    assert one_by_one < together - client.evaluation_key_bytes // 2
    leave(together - 1)
    with pytest.raises(TooLittleMemoryError, match="making the evaluation keys"):
        client.evaluation_keys()
    assert not made
    leave(one_by_one)
    folder = client.write_evaluation_keys(tmp_path)
    assert len(made) == len(artifact.evaluation_keys)
    leave(one_by_one - 1)
    with pytest.raises(TooLittleMemoryError, match="making an evaluation key"):
        client.write_evaluation_keys(tmp_path)
    monkeypatch.setattr(server_module, "make_backend", lambda *_: pytest.fail("a key was loaded"))
    with pytest.raises(TooLittleMemoryError, match="the server"):
        hg.Server(artifact, folder, allow_insecure=True)


def test_a_server_that_will_not_fit_is_refused_before_its_keys_are_made(
    artifact: hg.Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    made: list[object],
    leave: Callable[[int], None],
) -> None:
    """Where one process does both: there is enough for making the keys, and too little for the server."""
    monkeypatch.chdir(tmp_path)
    weighty = hg.compile(hg.parse(WEIGHTY), hg.Options(security_bits=None, log_ring=11))
    weighty.save("whole")
    weighty.public().save("public")
    x = np.linspace(-1, 1, 8)
    np.save("x.npy", x)
    planned = memory_bytes(weighty.program, weighty.ring)
    needed = planned["working"] + planned["evaluation_keys"] + planned["sent_keys"] + planned["loading"]
    assert key_making_bytes(weighty.evaluation_keys, False) < needed - 1
    leave(needed - 1)
    with pytest.raises(TooLittleMemoryError, match=r"the server of 'weighty'") as refused:
        measure(weighty, [x])
    assert "in a folder" in refused.value.hint
    assert "Options(memory_bytes=...)" in refused.value.hint
    with pytest.raises(SystemExit):
        main(["run", "--insecure", "whole", "--input", "x.npy"])
    assert "the server of 'weighty' needs" in capsys.readouterr().err
    assert not made
    # A client alone is not refused: its server may be elsewhere.
    main(["keygen", "--insecure", "public", "-o", "one", "--keys", "one.keys"])
    assert "this machine could not serve" not in capsys.readouterr().err
    main(["keygen", "--insecure", "whole", "-o", "two", "--keys", "two.keys"])
    assert "this machine could not serve" in capsys.readouterr().err
    assert len(made) == 2
    leave(needed)
    assert measure(weighty, [x]).outputs[0] == pytest.approx(hg.simulate(weighty, x, noisy=False), abs=1e-4)
    # Of a folder a server may hold fewer, but not fewer than one operation reads.
    planned = memory_bytes(artifact.program, artifact.ring)
    beside, least = planned["working"] + planned["loading"], key_use(artifact.program).least_bytes
    assert least < planned["evaluation_keys"]
    assert key_making_bytes(artifact.evaluation_keys, True) < beside + least
    leave(beside + least)
    require_server(artifact, folder=True)
    leave(beside + least - 1)
    with pytest.raises(TooLittleMemoryError):
        require_server(artifact, folder=True)


def test_kept_plaintexts_are_part_of_what_is_refused(leave: Callable[[int], None]) -> None:
    weighty = hg.compile(hg.parse(WEIGHTY), hg.Options(security_bits=None, log_ring=11))

    def working(cache_bytes: int) -> int:
        return memory_bytes(weighty.program, weighty.ring, cache_bytes)["working"]

    none = working(0)
    plaintexts = working(1 << 32) - none
    assert plaintexts > 1_000_000
    assert working(plaintexts // 2) - none == plaintexts // 2
    keys = hg.Client(weighty, allow_insecure=True).evaluation_keys()
    planned = memory_bytes(weighty.program, weighty.ring)
    beside = planned["evaluation_keys"] + planned["loading"]
    leave(none + plaintexts + beside - 1)
    with pytest.raises(TooLittleMemoryError):
        hg.Server(weighty, keys, cache_bytes=1 << 32, allow_insecure=True)
    hg.Server(weighty, keys, cache_bytes=0, allow_insecure=True).close()
    leave(none + plaintexts + beside + planned["sent_keys"] - 1)
    with pytest.raises(TooLittleMemoryError):
        require_server(weighty, cache_bytes=1 << 32)
    require_server(weighty, cache_bytes=0)
    with pytest.raises(TooLittleMemoryError):
        measure(weighty, [np.zeros(8)], cache_bytes=1 << 32)
    # By arithmetic, on a ring larger than any: more than the gibibyte that is kept where nothing else is said.
    large = replace(weighty.ring, log_ring=21)
    none, usual, more = (memory_bytes(weighty.program, large, cache << 30)["working"] for cache in (0, 1, 4))
    assert usual - none == 1 << 30
    assert usual == memory_bytes(weighty.program, large)["working"]
    assert more - none == plaintexts << 10 > usual - none


_FAULTS = """
import resource
import numpy as np
from heliograph.runtime.memory import keep_freed_arrays

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_arrays()
np.ones(1 << 20)
print(faults())
"""


@pytest.mark.skipif(memory._glibc() is None, reason="another C library than glibc: its allocator is left as it is")
def test_freed_arrays_are_kept_for_the_next_ones() -> None:
    """Twenty arrays of 2,048 pages, one after another, are one array: few pages are cleared again."""
    run = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2048


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    memory.keep_freed_arrays.__wrapped__()
    memory.return_freed_arrays()
