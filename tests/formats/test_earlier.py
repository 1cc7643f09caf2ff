"""Artifacts of the version before: read, used with the keys of their time, and written anew.

`golden/earlier` has files as version 11 wrote them: `sum` with its evaluation keys, and `conv`, a convolution of stride 2
whose predicted time was another by the prices of that day. A change of the format moves its own set there.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.fuzzing import fuzz
from helpers.hostile_artifacts import altered

import heliograph as hg
from heliograph.artifact import artifact as artifacts
from heliograph.artifact import earlier, figures, public
from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import PublicArtifact
from heliograph.cli.main import cli
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys

EARLIER = Path(__file__).parent / "golden" / "earlier"
# As they were printed when the files were made.
FINGERPRINTS = {
    "sum": "947119db38bf040dbe9fb464d5a22b84ce6158ba4004d115cd28dc655a53a48c",
    "conv": "3aef77024fac11e575c3829126fa29953df23f485a429c4093c876010cbf29ca",
}
CASES = sorted(FINGERPRINTS)


@pytest.fixture
def files(tmp_path: Path, case: str) -> Path:
    copy = tmp_path / "files"
    shutil.copytree(EARLIER / f"artifact11-{case}", copy)
    (copy / "key.bin").chmod(0o600)
    return copy


def loaded(files: Path) -> Artifact:
    return Artifact.load(files / "artifact.bin").belonging_to(PublicArtifact.load(files / "public.bin"))


def values(files: Path) -> tuple[Any, Any]:
    found = json.loads((files / "values.json").read_text())
    return np.array(found["sample"]), np.array(found["result"])


@pytest.mark.parametrize("case", CASES)
def test_keys_inputs_and_outputs_of_its_time_still_belong_to_it(files: Path, case: str) -> None:
    artifact, client = loaded(files), Client.load(files / "key.bin", allow_insecure=True)
    sample, result = values(files)
    assert artifact.fingerprint == FINGERPRINTS[case] == PublicArtifact.load(files / "public.bin").fingerprint
    client.check_artifact(artifact)
    kept = files / "evaluation-keys.bin"
    keys = EvaluationKeys.load(kept) if kept.exists() else client.evaluation_keys()
    assert client.decrypt(EncryptedOutput.load(files / "output.bin")) == pytest.approx(result, abs=1e-9)
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        found = client.decrypt(server.run(EncryptedInput.load(files / "input.bin")))
    assert found == pytest.approx(result, abs=1e-8)
    assert hg.simulate(artifact, sample, noisy=False) == pytest.approx(result, abs=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_anew_keeps_its_fingerprint_whatever_becomes_of_prices(
    files: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = PublicArtifact.load(files / "public.bin")
    data = loaded(files).to_bytes()
    assert unpack(data, "artifact", artifacts.VERSION, 1 << 30).version == artifacts.VERSION
    monkeypatch.setattr(figures, "total_ms", lambda *given: 12345.0)
    again = Artifact.from_bytes(data)
    assert again.report.values["predicted_ms"] == 12345.0
    assert again.public() == known
    assert (again.fingerprint, again.to_bytes()) == (known.fingerprint, data)
    # The file of version 11 does not say what it cost; its public part does.
    left = Artifact.load(files / "artifact.bin")
    assert left.fingerprint != known.fingerprint
    assert left.belonging_to(known).to_bytes() == data


@pytest.mark.parametrize("case", CASES)
def test_the_public_part_of_another_artifact_is_refused(files: Path, case: str) -> None:
    (other,) = set(CASES) - {case}
    stranger = PublicArtifact.load(EARLIER / f"artifact11-{other}" / "public.bin")
    with pytest.raises(ProgramError, match="is not one of"):
        Artifact.load(files / "artifact.bin").belonging_to(stranger)
    known = PublicArtifact.load(files / "public.bin")
    with pytest.raises(ProgramError, match="is not one of"):
        Artifact.load(files / "artifact.bin").belonging_to(replace(known, server_part="0" * 64))


@pytest.mark.parametrize("case", ["conv"])
def test_the_command(files: Path, case: str) -> None:
    def upgrade(*words: str) -> dict[str, Any]:
        made = CliRunner().invoke(cli, ["upgrade", *words, "--json"], catch_exceptions=False)
        found: dict[str, Any] = json.loads(made.stdout)
        return found

    old, part, new = (str(files / name) for name in ("artifact.bin", "public.bin", "new.helio"))
    found = upgrade(old, "--public", part, "-o", new)
    assert found["fingerprint"] == FINGERPRINTS[case] == Artifact.load(new).fingerprint
    assert Path(new).read_bytes() == loaded(files).to_bytes()
    with pytest.raises(ProgramError, match="already exists"):
        upgrade(old, "-o", new)
    assert upgrade(old, "-o", new, "--force")["fingerprint"] == Artifact.load(old).fingerprint
    assert upgrade(part, "-o", str(files / "new.public"))["fingerprint"] == FINGERPRINTS[case]
    with pytest.raises(ProgramError, match="is a public part itself"):
        upgrade(part, "--public", part, "-o", new, "--force")
    with pytest.raises(ProgramError, match="ARTIFACT belongs to a key"):
        upgrade(old, part, "-o", new, "--force")
    with pytest.raises(ProgramError, match="is no artifact: a key is upgraded for an ARTIFACT"):
        upgrade(str(files / "key.bin"), "-o", new)


# ------------------------------------------------------------------------- the table of steps


@pytest.mark.parametrize("case", ["sum"])
def test_a_public_part_goes_through_all_steps(files: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions that never were: each called one field by another name."""

    def renamed(old: str, new: str) -> earlier.Step:
        def step(found: Container) -> Container:
            fields = dict(found.fields)
            value = fields.pop(old)
            return replace(found, fields={**fields, new: value})

        return step

    good = unpack((files / "public.bin").read_bytes(), "public artifact", public.VERSION, 1 << 20)
    names = {9: ("conjugates", "conjugation"), 10: ("conjugation", "conjugation_key")}
    steps = {version: renamed(*names[version]) for version in names}
    monkeypatch.setattr(earlier, "STEPS", {**earlier.STEPS, "public artifact": steps})
    assert earlier.readable("public artifact", public.VERSION) == (9, 10, 11)
    fields = dict(good.fields)
    value = fields.pop("conjugation_key")
    for version, (old, _) in names.items():
        data = pack(Container(good.kind, version, {**fields, old: value}))
        read = PublicArtifact.from_bytes(data)
        assert (read.fingerprint, read.to_bytes()) == (FINGERPRINTS[case], (files / "public.bin").read_bytes())
        (files / "public.bin.old").write_bytes(data)
        assert PublicArtifact.load(files / "public.bin.old") == read
    with pytest.raises(WireError, match=r"is not a usable public artifact"):
        PublicArtifact.from_bytes(pack(Container(good.kind, 9, fields)))
    with pytest.raises(WireError, match=r"is of version 8; this program reads versions 9, 10, 11"):
        PublicArtifact.from_bytes(pack(Container(good.kind, 8, {**fields, "conjugates": value})))
    # Without its step, a version before the gap is not read either.
    monkeypatch.setattr(earlier, "STEPS", {"public artifact": {9: steps[9]}})
    assert earlier.readable("public artifact", public.VERSION) == (11,)


@pytest.mark.parametrize("case", ["sum"])
def test_a_version_has_only_its_own_fields(files: Path, case: str) -> None:
    good = unpack(loaded(files).to_bytes(), "artifact", artifacts.VERSION, 1 << 30)
    with pytest.raises(WireError, match="its fields are not those of an artifact of version 11"):
        Artifact.from_bytes(pack(replace(good, version=11)))
    rest = {key: value for key, value in good.fields.items() if key != "predicted"}
    with pytest.raises(WireError, match="its fields are not those of an artifact"):
        Artifact.from_bytes(pack(replace(good, fields=rest)))


@pytest.mark.parametrize("case", CASES)
def test_forged_artifacts_of_version_11_are_read_or_refused(files: Path, case: str) -> None:
    good = unpack((files / "artifact.bin").read_bytes(), "artifact", 11, 1 << 30)

    def forged(rng: random.Random) -> bytes:
        blobs = {name: bytes(blob) if isinstance(blob, memoryview) else blob for name, blob in good.blobs.items()}
        fields = altered(good.fields, rng) if rng.random() < 0.6 else good.fields
        if fields is good.fields:
            text = bytearray(good.bytes("text/program"))
            text[rng.randrange(len(text))] = rng.randrange(256)
            blobs["text/program"] = bytes(text)
        return pack(Container("artifact", 11, fields, blobs))

    def attempt(data: bytes) -> int:
        try:
            read = Artifact.from_bytes(data)
            Artifact.from_bytes(read.to_bytes())
        except HeliographError as error:
            return len(str(error))
        return 0

    tally = fuzz(forged, attempt, 80, seed=0)
    assert not tally.failures, tally.failures
    assert tally.refused > 30
