"""Results passed on with `decrypt(share=True)`: how much noise, from whose word, for how many results."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.support import mlp, sample

import heliograph as hg
from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.ckks import sharing
from heliograph.ckks.noise import encryption_std, rescale_std
from heliograph.errors import ProgramError, RangeError, SecurityError, WireError
from heliograph.runtime.client import outputs, shares
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import EncryptedOutput


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SHARE_RESULTS", 1 << 20)


def new_client(public: PublicArtifact) -> Client:
    return Client(public, allow_insecure=True)


def answer(artifact: Artifact, client: Client, x: Any) -> EncryptedOutput:
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        return server.run(client.encrypt(x))


# ---------------------------------------------------------------------------------------------- how much


def test_the_claim_follows_from_the_noise() -> None:
    """The distance of all results, whatever their number of values, integrated from the densities themselves."""
    for values in (1, 10, 1000, 1 << 15):
        std = sharing.flooding_std(1.0, values)
        # Every value of every result is off by the whole margin: along that direction there is one normal number.
        shift = math.sqrt(sharing.SHARE_RESULTS * values) * sharing.SHARE_MARGIN / std
        x = np.linspace(-12, 12, 200_001)
        apart = np.abs(np.exp(-((x - shift) ** 2) / 2) - np.exp(-(x**2) / 2)) / math.sqrt(2 * math.pi)
        distance = float(apart.sum() * (x[1] - x[0])) / 2
        assert distance == pytest.approx(2.0**-sharing.DISTANCE_BITS, rel=1e-4)
        # What the paper's noise costs more.
        paper = (
            math.log2(math.sqrt(12 * sharing.SHARE_RESULTS * values) * sharing.SHARE_MARGIN) + sharing.SHARE_BITS / 2
        )
        assert paper - sharing.sharing_cost_bits(values) == pytest.approx(3.118, abs=0.001)


def test_the_noise_is_as_stated(artifact: Artifact, client: Client, output_bytes: bytes, unlimited: None) -> None:
    output = EncryptedOutput.from_bytes(output_bytes)
    kept = client.decrypt(output)
    expected = client.public.predicted["scheme_error"]
    # 2 Phi(mu / 2) - 1 is about mu / sqrt(2 pi).
    std = expected * math.sqrt(64 * kept.size) * 8 * 2.0**15 / math.sqrt(2 * math.pi)
    shared = np.stack([client.decrypt(output, share=True) for _ in range(300)])
    noise = shared - kept
    assert noise.std() == pytest.approx(std, rel=0.1)
    assert abs(noise.mean()) < 4 * std / np.sqrt(noise.size)
    grid = 2.0 ** (np.floor(np.log2(std)) - 4)
    np.testing.assert_allclose(shared / grid, np.round(shared / grid), atol=1e-6)


def test_several_outputs_count_together(unlimited: None) -> None:
    text = "program two\ninput x: secret tensor[3] in [-1, 1]\noutput y = x + x\noutput z = x[0] - x[1]\n"
    artifact = hg.compile(hg.parse(text), hg.Options(security_bits=None))
    client = new_client(artifact.public())
    output = answer(artifact, client, np.array([0.5, 0.25, -1.0]))
    kept = client.decrypt(output)
    noise = [[], []]
    for _ in range(300):
        for found, shared, value in zip(noise, client.decrypt(output, share=True), kept, strict=True):
            found.append(shared - value)
    for found, spec in zip(noise, client.public.outputs, strict=True):
        std = sharing.flooding_std(client._expected_error(spec), 4)
        assert np.std(found) == pytest.approx(std, rel=0.2)


def told(public: PublicArtifact, lie: PublicArtifact) -> PublicArtifact:
    """What a server says instead, under the fingerprint that its messages carry."""
    return dataclasses.replace(lie, named=public.fingerprint)


def test_the_servers_word_alone_does_not_make_it_smaller(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, unlimited: None
) -> None:
    """A public artifact that says that there is no error: the client's own least error is taken."""
    public = artifact.public()
    lie = dataclasses.replace(public, predicted={**public.predicted, "scheme_error": 0.0})
    client = new_client(told(public, lie))
    output = answer(artifact, client, np.sign(sample()))
    ring, spec = public.ring, client.public.outputs[0]
    least = 2 * math.hypot(encryption_std(ring), rescale_std(ring)) / 2.0 ** spec.log_scales[0]
    assert client._expected_error(spec) == pytest.approx(least)
    decrypted = client._cryptor.decrypted

    def estimated(error: float) -> None:
        monkeypatch.setattr(client._cryptor, "decrypted", lambda *given: (decrypted(*given)[0], error))

    # An output that is off by more than the noise is reckoned for is not handed out: so it mostly is here.
    estimated(9 * least)
    with pytest.raises(SecurityError, match="its error is larger than the noise assumes"):
        client.decrypt(output, share=True)
    assert client._shares.count == 0
    # Where it is not, the noise is that of the least error.
    estimated(7 * least)
    kept = client.decrypt(output)
    noise = np.stack([client.decrypt(output, share=True) for _ in range(200)]) - kept
    assert noise.std() == pytest.approx(sharing.flooding_std(least, kept.size), rel=0.12)
    # Neither does it switch off the check of the error.
    estimated(2000 * least)
    with pytest.raises(RangeError, match="more than 1024 times the one expected"):
        client.decrypt(output)


def test_honest_artifacts_are_above_the_least_error_and_below_the_margin() -> None:
    """Inputs chosen for a large error too: the margin holds, and the client's own estimate lets them pass."""
    power = "program power\ninput x: secret tensor[4] in [-1, 1]\noutput y = x*x*x*x*x*x*x*x\n"
    total = "program total\ninput x: secret tensor[64] in [-1, 1]\noutput y = sum(x*x)\n"
    cases = (
        (mlp(), hg.Options(security_bits=None, degree=3), [np.sign(sample(i)) for i in range(4)]),
        (hg.parse(power), hg.Options(security_bits=None), [np.ones(4), np.full(4, 0.1), -np.ones(4)]),
        (hg.parse(total), hg.Options(), [np.ones(64), np.zeros(64)]),
    )
    for program, options, inputs in cases:
        artifact = hg.compile(program, options)
        client = new_client(artifact.public())
        predicted = client.public.predicted["scheme_error"]
        assert all(client._expected_error(spec) == predicted for spec in client.public.outputs)
        with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
            for x in inputs:
                output = server.run(client.encrypt(x))
                error = np.abs(client.decrypt(output) - hg.simulate(artifact, x, noisy=False)).max()
                assert error < sharing.SHARE_MARGIN * predicted
                spec = client.public.outputs[0]
                _, estimated = client._decrypted(output, spec, "0", 0, spec.log_scales[0], "the output")
                outputs.check_sharing("y", 1, predicted, estimated, {"output_magnitude": 1e30})


# ---------------------------------------------------------------------------------------------- refusals


def test_what_would_be_drowned_is_refused_and_not_counted() -> None:
    text = "program square\ninput x: secret tensor[4] in [-1, 1]\noutput y = x * x\n"
    artifact = hg.compile(hg.parse(text), hg.Options(security_bits=None, scale_bits=30))
    client = new_client(artifact.public())
    with pytest.raises(ProgramError, match="cannot be shared") as caught:
        client.decrypt(answer(artifact, client, np.ones(4)), share=True)
    assert "precision_bits" in caught.value.hint
    assert client._shares.count == 0


@pytest.mark.parametrize(("error", "magnitude"), [(1e18, 0.0), (1e18, 1e18), (0.0, 0.0), (1e-300, 1e-300)])
def test_odd_predictions_are_refused_in_words(artifact: Artifact, error: float, magnitude: float) -> None:
    public = artifact.public()
    odd = dataclasses.replace(
        public, predicted={**public.predicted, "scheme_error": error, "output_magnitude": magnitude}
    )
    client = new_client(told(public, odd))
    output = answer(artifact, client, np.sign(sample()))
    with pytest.raises((ProgramError, SecurityError), match="cannot be shared"):
        client.decrypt(output, share=True)
    assert client._shares.count == 0


def test_bootstrapped_results_are_refused(artifact: Artifact, output_bytes: bytes) -> None:
    client = new_client(artifact.public())
    client.public = told(client.public, dataclasses.replace(client.public, raising_chains=(0,)))
    with pytest.raises(SecurityError, match=r"(?s)bootstraps cannot be shared.*not a bound"):
        client.decrypt(EncryptedOutput(artifact.fingerprint, client.id, request="0" * 32), share=True)


# ---------------------------------------------------------------------------------------------- how many


def test_results_are_counted_and_refused_beyond(artifact: Artifact) -> None:
    client = new_client(artifact.public())
    output = answer(artifact, client, sample())
    for _ in range(sharing.SHARE_RESULTS):
        client.decrypt(output, share=True)
    with pytest.raises(SecurityError, match=r"(?s)has shared 64 results.*new client"):
        client.decrypt(output, share=True)
    # What the client keeps is not counted.
    client.decrypt(output)


def test_the_count_is_kept_with_the_key(artifact: Artifact, tmp_path: Path) -> None:
    client = new_client(artifact.public())
    output = answer(artifact, client, sample())
    for _ in range(3):
        client.decrypt(output, share=True)
    client.save(tmp_path / "key", "secret")
    client.decrypt(output, share=True)
    again = Client.load(tmp_path / "key", "secret", allow_insecure=True)
    again.decrypt(output, share=True)
    # The first one sees what the second did.
    client.decrypt(output, share=True)
    assert client._shares.count == 6
    ledger = tmp_path / "key.shared"
    assert ledger.stat().st_mode & 0o777 == 0o600
    # In another place the count starts with what the key file says: both files belong together.
    client.save(tmp_path / "copy")
    assert Client.load(tmp_path / "copy", allow_insecure=True)._shares.count == 6
    # A damaged one is refused, and nothing is handed out.
    ledger.write_bytes(ledger.read_bytes()[:-1])
    with pytest.raises(WireError, match=r"key\.shared: its header does not fit in it"):
        again.decrypt(output, share=True)
    again.decrypt(output)


def test_a_count_of_a_replaced_key_does_not_matter(artifact: Artifact, tmp_path: Path) -> None:
    for number in range(2):
        client = new_client(artifact.public())
        client.save(tmp_path / "key", overwrite=True)
        output = answer(artifact, client, sample())
        for _ in range(number + 1):
            client.decrypt(output, share=True)
        assert client._shares.count == number + 1


def test_what_cannot_be_counted_is_not_shared(artifact: Artifact, tmp_path: Path) -> None:
    client = new_client(artifact.public())
    output = answer(artifact, client, sample())
    (tmp_path / "folder").mkdir()
    client.save(tmp_path / "folder" / "key")
    (tmp_path / "folder" / "key").unlink()
    (tmp_path / "folder").rmdir()
    with pytest.raises(WireError, match="cannot be counted"):
        client.decrypt(output, share=True)


_SHARE = """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import heliograph as hg
    from heliograph.errors import SecurityError
    from heliograph.runtime.client import client as module
    client = hg.Client.load("key", allow_insecure=True)
    output = hg.EncryptedOutput.load("output")
    if sys.argv[1] == "killed":
        # As soon as the result exists; it is not handed out any more.
        module.flood = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
    done = 0
    try:
        for _ in range(40):
            client.decrypt(output, share=True)
            done += 1
    except SecurityError:
        pass
    print(done)
"""


def test_the_count_survives_kills_and_processes_share_it(artifact: Artifact, tmp_path: Path) -> None:
    client = new_client(artifact.public())
    client.save(tmp_path / "key")
    answer(artifact, client, sample()).save(tmp_path / "output")
    environment = {**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(_SHARE), how]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    for _ in range(2):
        killed = start("killed")
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL
    both = [start("goes on") for _ in range(2)]
    done = [int(process.communicate(timeout=60)[0]) for process in both]
    # Of 64, two went with the kills; each of the two asked for 40.
    assert sum(done) == sharing.SHARE_RESULTS - 2
    with pytest.raises(SecurityError, match="has shared 64 results"):
        client.decrypt(EncryptedOutput.load(tmp_path / "output"), share=True)
