"""A new version of a model under the same secret key: evaluation keys that both versions need alike are kept."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.serving import Running
from runtime.support import mlp, sample, toy_artifact

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.serving.remote.records import KeysRecord, read_record


@functools.cache
def version(number: int) -> hg.Artifact:
    """Version 0 has fewer keys, from which it composes other rotations."""
    fewer = 2_000_000 if number == 0 else None
    return hg.compile(
        mlp(number), hg.Options(security_bits=None, degree=5, scale_bits=40, log_ring=11, key_bytes=fewer)
    )


def names(artifact: hg.Artifact) -> set[str]:
    return {key.name for key in artifact.evaluation_keys}


def test_the_versions_share_keys() -> None:
    one, other = version(0), version(1)
    assert one.ring == other.ring
    assert one.fingerprint != other.fingerprint
    assert names(one) & names(other)
    assert names(other) - names(one)


def test_keys_of_a_folder_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = version(0), version(1)
    client = hg.Client(one, allow_insecure=True)
    old = client.write_evaluation_keys(tmp_path / "old")
    later = client.for_artifact(other, allow_insecure=True)
    assert later.kept_keys(old) == names(one) & names(other)
    made: list[str] = []
    make = type(later._cryptor).evaluation_key_bytes
    monkeypatch.setattr(
        type(later._cryptor), "evaluation_key_bytes", lambda self, key: made.append(key.name) or make(self, key)
    )
    new = later.write_evaluation_keys(tmp_path / "new", reuse=old)
    assert set(made) == names(other) - names(one)
    assert new.artifact == other.fingerprint
    for name in names(one) & names(other):
        assert bytes(new.blob(name)) == bytes(old.blob(name))
    with hg.Server(other, new, allow_insecure=True) as server:
        found = later.decrypt(server.run(later.encrypt(sample())))
    assert np.abs(found - hg.simulate(other, sample(), noisy=False)).max() < 1e-3


def test_keys_of_others_are_refused(tmp_path: Path) -> None:
    client, stranger = (hg.Client(version(0), allow_insecure=True) for _ in range(2))
    theirs = stranger.write_evaluation_keys(tmp_path / "theirs")
    later = client.for_artifact(version(1), allow_insecure=True)
    with pytest.raises(hg.WireError, match="belong"):
        later.kept_keys(theirs)
    with pytest.raises(hg.ProgramError, match="no earlier keys can be kept"):
        client.kept_keys(theirs)


def test_the_command(tmp_path: Path) -> None:
    run = functools.partial(CliRunner().invoke, cli, catch_exceptions=False)
    version(0).save(tmp_path / "one.helio")
    version(1).public().save(tmp_path / "two.public")
    place = {name: str(tmp_path / name) for name in ("one.helio", "two.public", "old.key", "new.key", "old", "new")}
    made = run(["keygen", place["one.helio"], "-o", place["old.key"], "--keys", f"{place['old']}/", "--insecure"])
    assert made.exit_code == 0, made.output
    words = ["upgrade", place["old.key"], place["two.public"], "-o", place["new.key"], "--keys", place["new"]]
    words += ["--reuse", place["old"], "--insecure", "-q"]
    for _ in range(2):
        # The second time, it goes on where nothing is left.
        assert run(words).exit_code == 0
    old, new = (hg.Client.load(place[name], allow_insecure=True) for name in ("old.key", "new.key"))
    assert (old.id, new.public.fingerprint) == (new.id, version(1).fingerprint)
    with hg.Server(version(1), hg.KeyFolder(place["new"]), allow_insecure=True) as server:
        found = new.decrypt(server.run(new.encrypt(sample())))
    assert np.abs(found - hg.simulate(version(1), sample(), noisy=False)).max() < 1e-3
    # With the key of somebody else, nothing is written over.
    hg.Client(version(1), allow_insecure=True).save(place["new.key"], overwrite=True)
    before = Path(place["new.key"]).read_bytes()
    with pytest.raises(hg.ProgramError, match="with another secret key"):
        run(words)
    assert Path(place["new.key"]).read_bytes() == before


def test_a_server_keeps_what_both_versions_need(tmp_path: Path) -> None:
    one, other = version(0), version(1)
    paths = [tmp_path / "one.helio", tmp_path / "other.helio"]
    for artifact, path in zip((one, other), paths, strict=True):
        artifact.save(path)
    running = Running(tmp_path / "data", paths).start()
    client = hg.Client(one, allow_insecure=True)
    later = client.for_artifact(other, allow_insecure=True)
    keys = client.write_evaluation_keys(tmp_path / "old")
    with hg.RemoteServer(running.url, running.token, patience_s=60) as remote:
        remote.register(keys)
        # Another tenant with the same client's name gets nothing of these keys.
        path = f"/v1/keys/{other.fingerprint}/{client.id}"
        asked = read_record(KeysRecord, running.request("PUT", path, running.other).json())
        assert set(asked.missing) == names(other)
        mine = read_record(KeysRecord, running.request("PUT", path, running.token).json())
        assert set(mine.missing) == names(other) - names(one)
        # Where the other set is damaged, the client sends the keys again.
        remote.forget(hg.EvaluationKeys(other.fingerprint, client.id))
        for file in running.places.root.rglob("*.key"):
            file.unlink()
        again = read_record(KeysRecord, running.request("PUT", path, running.token).json())
        assert set(again.missing) == names(other)
        remote.register(later.write_evaluation_keys(tmp_path / "new", reuse=keys))
        found = later.decrypt(remote.run(later.encrypt(sample())))
        assert np.abs(found - hg.simulate(other, sample(), noisy=False)).max() < 1e-3
    assert running.stop() == 0


def test_another_ring_is_refused() -> None:
    client = hg.Client(version(0), allow_insecure=True)
    with pytest.raises(hg.ProgramError, match="on another ring"):
        client.for_artifact(toy_artifact(), allow_insecure=True)
