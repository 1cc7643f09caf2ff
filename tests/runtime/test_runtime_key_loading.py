"""Keys that do not all fit: what stays, what is loaded when, and that results and errors are those of a server with all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError, WireError
from heliograph.execution.key_use import KeyUse, key_use
from heliograph.execution.memory import memory_bytes
from heliograph.runtime.keyloader import place_of
from heliograph.runtime.wire.keyfolder import KeyFolder


def _sum(of: str, amounts: range) -> str:
    return " + ".join(f"rotate({of}, {amount})" for amount in amounts)


# Three times a sum of many rotations, of which the third repeats the first.
SOURCE = f"""program many
input x: secret slots[256] in [-1, 1]
a = {_sum("x", range(65, 97))}
y = bootstrap(0.03 * a)
b = {_sum("y", range(97, 129))}
c = {_sum("b", range(65, 97))}
output w = 0.001 * c
"""


def meaning(x: np.ndarray) -> np.ndarray:
    def sums(v: np.ndarray, amounts: range) -> np.ndarray:
        return np.sum([np.roll(v, -amount) for amount in amounts], axis=0)

    y = 0.03 * sums(x, range(65, 97))
    return np.asarray(0.001 * sums(sums(y, range(97, 129)), range(65, 97)))


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None, log_ring=11))


@pytest.fixture(scope="module")
def client(artifact: hg.Artifact) -> hg.Client:
    return hg.Client(artifact.public(), allow_insecure=True)


@pytest.fixture(scope="module")
def folder(client: hg.Client, tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    return client.write_evaluation_keys(tmp_path_factory.mktemp("keys"))


def bound(artifact: hg.Artifact, share: float) -> int:
    use = key_use(artifact.program)
    return use.staying_bytes + int(share * sum(key.bytes for key in use.others.values()))


def check(client: hg.Client, server: hg.Server, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-1, 1, 256)
    np.testing.assert_allclose(client.decrypt(server.run(client.encrypt(x))), meaning(x), atol=1e-4)


def test_with_half_of_its_keys_a_server_gives_the_same(
    artifact: hg.Artifact, client: hg.Client, folder: KeyFolder
) -> None:
    use, allowed = key_use(artifact.program), bound(artifact, 0.5)
    predicted, _ = use.loads(allowed)
    with (
        hg.Server(artifact, folder, allow_insecure=True) as whole,
        hg.Server(artifact, folder, key_bytes=allowed, allow_insecure=True) as server,
    ):
        assert whole.keys is None
        assert server.keys is not None
        check(client, whole, 1)
        check(client, server, 1)
        first = server.keys.loads
        check(client, server, 2)
        assert 0 < len(use.others) <= first
        # What a run loads again is what the plan says, and less than loading each key for each node that reads it.
        assert server.keys.loads - first == predicted
        assert predicted < sum(len(names) for names in use.reads)
        assert use.staying_bytes < server.keys.peak_bytes <= allowed
        check(client, whole, 3)


def test_primitives_are_timed_with_whatever_keys_there_are(
    artifact: hg.Artifact, client: hg.Client, folder: KeyFolder
) -> None:
    use, allowed = key_use(artifact.program), bound(artifact, 0.3)
    with hg.Server(artifact, folder, key_bytes=allowed, allow_insecure=True) as server:
        assert server.keys is not None
        check(client, server, 1)
        floor = server.floor()
        # The keys that stay are not of every chain: whichever is held now, or the first one.
        for _ in range(2):
            floor.sample()
        assert floor.milliseconds() > 0
        assert server.keys.peak_bytes <= allowed
        places = {place_of(key) for key in use.others.values()}
        for place in places & set(server.keys._table):
            del server.keys._table[place]
        server.keys._held.clear()
        floor.sample()
        assert len(places & set(server.keys._table)) == 1
        check(client, server, 2)


@pytest.mark.parametrize("order", ["abcabdab", "abcdabcd", "abacadbcbdcd", "aabbccddabcd"])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_no_other_choice_loads_less(order: str, places: int) -> None:
    """Against all choices there are, over three runs."""
    ring = Ring(11, 60, 55, 17, 4, None, (2, 2))
    keys = {name: EvaluationKey(name, ring, "rotation", 1) for name in "abcd"}
    where = {name: tuple(i for i, other in enumerate(order) if other == name) for name in "abcd"}
    use = KeyUse((), keys, tuple(frozenset(name) for name in order), where)
    size = ring.rotation_key_bytes
    held: set[str] = set()
    least: dict[frozenset[str], int] = {frozenset(): 0}
    loads = 0
    for position in [*range(len(order))] * 3:
        name = order[position]
        if name not in held:
            held -= set(use.dropped(held, position, places * size))
            held.add(name)
            loads += 1
        assert len(held) <= places
        following: dict[frozenset[str], int] = {}
        for before, count in least.items():
            full = before | {name}
            options = [full] if len(full) <= places else [full - {gone} for gone in before - {name}]
            for after in options:
                total = count + (name not in before)
                following[after] = min(total, following.get(after, total))
        least = following
    assert loads == min(least.values())
    assert use.loads(4 * size) == (0, 0)
    assert use.least_bytes == size


def test_a_damaged_key_in_the_middle_of_a_run_loses_nothing(
    artifact: hg.Artifact, client: hg.Client, folder: KeyFolder, tmp_path: Path
) -> None:
    for file in folder.path.iterdir():
        os.link(file, tmp_path / file.name)
    name = sorted(key_use(artifact.program).others)[-1]
    file = tmp_path / (name.replace("/", "-") + ".key")
    good = file.read_bytes()
    file.unlink()
    file.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    with hg.Server(artifact, KeyFolder(tmp_path), key_bytes=bound(artifact, 0.5), allow_insecure=True) as server:
        for _ in range(2):
            with pytest.raises(WireError, match="damaged"):
                check(client, server, 4)
        file.write_bytes(good)
        check(client, server, 4)
        assert server.keys is not None
        assert server.keys.peak_bytes <= server.keys.key_bytes


def test_two_servers_share_the_process(artifact: hg.Artifact, client: hg.Client, folder: KeyFolder) -> None:
    failures: list[BaseException] = []

    def work(server: hg.Server) -> None:
        try:
            for seed in range(2):
                check(client, server, seed)
        except BaseException as error:
            failures.append(error)

    with (
        hg.Server(artifact, folder, key_bytes=bound(artifact, 0.4), allow_insecure=True) as one,
        hg.Server(artifact, folder, key_bytes=bound(artifact, 0.6), allow_insecure=True) as two,
    ):
        threads = [threading.Thread(target=work, args=(server,)) for server in (one, two, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_bounds_that_cannot_be_kept_are_refused(artifact: hg.Artifact, client: hg.Client, folder: KeyFolder) -> None:
    with pytest.raises(ProgramError, match="at once, key_bytes allows"):
        hg.Server(artifact, folder, key_bytes=key_use(artifact.program).least_bytes - 1, allow_insecure=True)
    with pytest.raises(ProgramError, match="cannot be loaded by need"):
        hg.Server(artifact, client.evaluation_keys(), key_bytes=bound(artifact, 0.5), allow_insecure=True)


def test_a_server_takes_what_the_machine_has_left(
    artifact: hg.Artifact, folder: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = memory_bytes(artifact.program, artifact.ring)
    left = planned["working"] + planned["loading"] + bound(artifact, 0.5)
    monkeypatch.setattr("heliograph.runtime.server.server.available_bytes", lambda: left)
    with hg.Server(artifact, folder, allow_insecure=True) as server:
        assert server.keys is not None
        assert server.keys.key_bytes == bound(artifact, 0.5)


_PEAK = """
    import sys
    from pathlib import Path
    from heliograph.artifact.artifact import Artifact
    from heliograph.runtime.wire.keyfolder import KeyFolder
    from heliograph.tools.measure import peak_rss_bytes
    from heliograph.runtime.wire.messages import EncryptedInput
    from heliograph.runtime.server.server import Server
    folder = Path(sys.argv[1])
    artifact = Artifact.load(folder / "artifact")
    with Server(artifact, KeyFolder(folder / "keys"), key_bytes=int(sys.argv[2]) or None, allow_insecure=True) as server:
        for _ in range(2):
            server.run(EncryptedInput.load(folder / "input"))
    print(peak_rss_bytes())
"""


def test_the_peak_of_a_process_is_bounded(tmp_path: Path) -> None:
    # Large enough that what is saved stands out from what processes take beside.
    artifact = hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None, log_ring=13))
    client = hg.Client(artifact.public(), allow_insecure=True)
    artifact.save(tmp_path / "artifact")
    client.write_evaluation_keys(tmp_path / "keys")
    client.encrypt(np.linspace(-1, 1, 256)).save(tmp_path / "input")
    planned, allowed = memory_bytes(artifact.program, artifact.ring), bound(artifact, 0.3)
    peaks = []
    for key_bytes in (0, allowed):
        command = [sys.executable, "-c", textwrap.dedent(_PEAK), str(tmp_path), str(key_bytes)]
        peaks.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    saved = planned["evaluation_keys"] - allowed
    assert peaks[1] < peaks[0] - 0.7 * saved
    assert 1 / 1.3 < peaks[1] / (planned["server_folder"] - saved) < 1.3
