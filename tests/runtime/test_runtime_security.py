"""Nobody is downgraded: what has no security is refused by client, server and command line unless they are told."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import VERSION, PublicArtifact
from heliograph.artifact.validate import check_ring
from heliograph.ckks.ring import MAX_PRIME_BITS, Ring, bootstrap_levels
from heliograph.ckks.security import MAX_LOG_PQ_128
from heliograph.errors import InsecureWarning, SecurityError, WireError
from heliograph.ir.text import print_program
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.security import artifact_weakness, weakness


def secure_artifact() -> hg.Artifact:
    """One product at 128 bits, on a ring small enough for a test."""
    text = "program square\ninput x: secret tensor[4] in [-1, 1]\noutput y = x * x\n"
    return hg.compile(hg.parse(text), hg.Options(precision_bits=8))


def test_a_client_refuses_an_artifact_without_security(tmp_path: Path) -> None:
    public = PublicArtifact.from_bytes(toy_artifact().public().to_bytes())
    with pytest.raises(SecurityError, match=r"(?s)artifact 'mlp' has no security.*security_bits=None.*allow_insecure"):
        hg.Client(public)
    with pytest.warns(InsecureWarning, match="can be read by everyone"):
        client = hg.Client(public, allow_insecure=True)
    client.save(tmp_path / "key")
    with pytest.raises(SecurityError, match="has no security"):
        hg.Client.load(tmp_path / "key")
    with pytest.warns(InsecureWarning):
        hg.Client.load(tmp_path / "key", allow_insecure=True)


def test_a_server_refuses_it_too() -> None:
    artifact = toy_artifact()
    keys = hg.Client(artifact, allow_insecure=True).evaluation_keys()
    with pytest.raises(SecurityError, match=r"(?s)Server: artifact 'mlp' has no security"):
        hg.Server(artifact, keys)
    with pytest.warns(InsecureWarning):
        hg.Server(artifact, keys, allow_insecure=True).close()


def test_a_secure_one_needs_no_word_and_gets_no_warning() -> None:
    artifact, x = secure_artifact(), np.array([0.5, -0.25, 1.0, 0.0])
    assert artifact_weakness(artifact) == artifact_weakness(artifact.public()) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error", InsecureWarning)
        client = hg.Client(artifact.public())
        with hg.Server(artifact, client.evaluation_keys()) as server:
            np.testing.assert_allclose(client.decrypt(server.run(client.encrypt(x))), x * x, atol=1e-2)


def test_a_claim_of_128_bits_is_compared_with_the_table() -> None:
    """A hostile public artifact: the ring has no security and says that it has; also one whose lower chain has none."""
    public = toy_artifact().public()
    container = unpack(public.to_bytes(), "public artifact", VERSION, 1 << 26)
    fields = json.loads(json.dumps(dict(container.fields)))
    for claim, words in ((128, "does not have the security that it claims"), (80, "is 80, not 128"), (256, "not 128")):
        fields["ring"]["security_bits"] = claim
        forged = pack(Container(container.kind, VERSION, fields))
        with pytest.raises(WireError, match=words):
            PublicArtifact.from_bytes(forged)
    # An object that was never read from bytes is looked at as well.
    ring = dataclasses.replace(public.ring, security_bits=128)
    lie = dataclasses.replace(public, chains=(dataclasses.replace(public.chains[0], ring=ring), *public.chains[1:]))
    with pytest.raises(SecurityError, match="it claims 128 bits, but its modulus PQ has"):
        hg.Client(lie)
    # OpenFHE has a table of its own; chains with short special primes are compared with ours there too.
    with pytest.warns(InsecureWarning):
        hg.Client(lie, allow_insecure=True)
    with pytest.raises(SecurityError, match="is too much for ring dimension 1024"):
        OpenFHECryptor(ring)


def small_rings() -> Iterator[Ring]:
    """Every chain that has levels for a bootstrap at ring dimensions below 2^15, and a modulus within the table."""
    for log_ring in range(10, 15):
        most = MAX_LOG_PQ_128[log_ring]
        for scale, short in itertools.product(range(15, MAX_PRIME_BITS + 1), (False, True)):
            for first in range(scale, MAX_PRIME_BITS + 1):
                for levels in range(bootstrap_levels((1, 1)), most // scale + 1):
                    for digits in range(1, levels + 2):
                        ring = Ring(log_ring, first, scale, levels, digits, 128, short_specials=short)
                        if ring.nominal_log_pq < most and ring.secure and ring.legal:
                            yield ring


def test_no_ring_bootstraps_whose_sparse_secret_costs_less_than_128_bits() -> None:
    """By enumeration: at ring dimension 2^14 that secret was worth 113 to 121 bits, and 168 rings passed that tell one
    from another by their bootstraps.
    """
    chains, tried, passed = 0, 0, []
    for chain in small_rings():
        chains += 1
        for budget in itertools.product(range(1, 9), repeat=2):
            if bootstrap_levels(budget) > chain.levels:
                continue
            ring = dataclasses.replace(chain, bootstrap=budget)
            tried += 1
            passed += [ring] if not weakness([ring]) or ring.secure else []
            try:
                check_ring(ring)
                passed.append(ring)
            except WireError:
                pass
    assert (chains > 300, tried > 1000, passed) == (True, True, [])


def test_a_ring_that_is_too_small_for_bootstraps_is_refused_at_every_door() -> None:
    """By the artifact's reader, the public part's and the key's, and by clients and servers of an object in memory."""
    ring = Ring(14, 59, 25, 12, 13, 128, (1, 1), short_specials=True)
    assert ring.log_pq < MAX_LOG_PQ_128[14]
    artifact = secure_artifact()
    public = artifact.public()
    small = "the key to the sparse secret of bootstraps does not have 128 bits"
    lie = dataclasses.replace(
        public, chains=(dataclasses.replace(public.chains[0], ring=ring),), raising_chains=(0,), conjugation_key=True
    )
    assert any(key.kind == "encapsulation" for key in lie.evaluation_keys)
    with pytest.raises(SecurityError, match=small):
        hg.Client(lie)
    with pytest.raises(WireError, match=small):
        PublicArtifact.from_bytes(lie.to_bytes())
    parameters = dataclasses.replace(artifact.program.planned, chains=lie.chains)
    forged = dataclasses.replace(artifact, program=dataclasses.replace(artifact.program, parameters=parameters))
    keys = dataclasses.replace(hg.Client(artifact).evaluation_keys(), artifact=forged.fingerprint)
    with pytest.raises(SecurityError, match=small):
        hg.Server(forged, keys)
    with pytest.raises(WireError, match=small):
        hg.Artifact.from_bytes(forged.to_bytes())


@pytest.mark.parametrize("value", ["yes", 1, None, []])
def test_a_ring_whose_special_primes_are_neither_short_nor_long_is_refused(value: object) -> None:
    container = unpack(toy_artifact().public().to_bytes(), "public artifact", VERSION, 1 << 26)
    fields = json.loads(json.dumps(dict(container.fields)))
    fields["ring"]["short_specials"] = value
    with pytest.raises(WireError, match="short_specials"):
        PublicArtifact.from_bytes(pack(Container(container.kind, VERSION, fields)))


def test_weakness_follows_the_table() -> None:
    for log_ring in (12, 13, 14):
        for levels in range(1, 12):
            ring = Ring(log_ring, 50, 30, levels, 1)
            if not ring.legal:
                continue
            assert (weakness([ring]) == "") == ring.secure
            if ring.log_pq > MAX_LOG_PQ_128[log_ring]:
                assert weakness([Ring(14, 50, 30, 2, 1), ring])
    assert "80 bits, and 128 are asked for" in weakness([Ring(14, 50, 30, 2, 1, 80)])


def test_the_command_line_refuses_and_warns_at_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    artifact = toy_artifact()
    artifact.save("model")
    artifact.public().save("public")
    np.save("x.npy", sample())
    steps = (
        ("keygen", "public"),
        ("encrypt", "client.key", "x.npy"),
        ("evaluate", "model", "input.ct"),
        ("decrypt", "client.key", "output.ct"),
        ("run", "model", "--input", "x.npy"),
    )
    for command in steps:
        before = sorted(path.name for path in tmp_path.iterdir())
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, ""), command
        assert "has no security" in err
        assert "--insecure" in err
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        for quiet in ((), ("--quiet",))[: 1 if command[0] == "keygen" else 2]:
            force = ("--force",) if quiet and command[0] in ("encrypt", "evaluate") else ()
            code, _, err = run(capsys, *command, "--insecure", *quiet, *force)
            assert code == 0, err
            assert "INSECURE: artifact 'mlp' has no security" in err


def test_the_command_line_says_nothing_of_a_secure_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    artifact = secure_artifact()
    artifact.save("model")
    np.save("x.npy", np.full(4, 0.5))
    code, out, err = run(capsys, "run", "model", "--input", "x.npy")
    assert code == 0, err
    assert "INSECURE" not in out + err


def test_fingerprints_have_256_bits_and_so_has_all_that_they_cover() -> None:
    """Of 128 bits somebody who makes both finds two artifacts with one fingerprint after 2^64 hashes: he shows the first
    and serves the second.
    """
    artifact = toy_artifact()
    assert len(artifact.fingerprint) == 64
    assert len(artifact.public().server_part) == 64
    text = print_program(artifact.program)
    digests = re.findall(r'^const .*? "([0-9a-f]*)"', text, re.MULTILINE)
    assert digests
    assert {len(digest) for digest in digests} == {64}
    for artifact_name, client in (
        (artifact.fingerprint[:32], "0" * 32),
        ("0" * 63, "0" * 32),
        ("0" * 64, "0" * 64),
        ("0" * 64, "0" * 31),
        ("g" * 64, "0" * 32),
    ):
        with pytest.raises(WireError, match="its fields are not those of evaluation keys"):
            hg.EvaluationKeys.from_bytes(hg.EvaluationKeys(artifact_name, client).to_bytes())
