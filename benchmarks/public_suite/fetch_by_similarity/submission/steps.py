"""The steps of a submission to the public benchmark "fetch by similarity", for its mode --count_only.

    steps.py build                compiles an artifact for each size
    steps.py STEP SIZE [...]      one of the harness' executables (build_task.sh makes them)

The working folder is that in which the harness runs. The client's vectors are encrypted, and so is its query; the server
decides which scores exceed 0.8 and returns that, and no score. Client and server share files alone: the server's step
reads the artifact, evaluation keys and ciphertexts, and never the folder `secret`.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy  # isort: skip

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

NAMES = ("toy", "small")
SHAPES = ((1_000, 128), (50_000, 128))
THRESHOLD = 0.8
# Scores of matches lie about 0.917 +- 0.02, those of others below 0.4: none comes nearer to the threshold.
GAP = 0.05
HERE = Path(__file__).resolve().parent


def artifact_of(size: int) -> Path:
    return HERE / "build" / f"{NAMES[size]}.helio"


def compiled(size: int) -> hg.Artifact:
    """The index for so many vectors: any will do, as the artifact holds their number and length alone."""
    stand_in = np.random.default_rng(0).normal(size=SHAPES[size])
    return hg.search_index(
        stand_in, encrypted=True, answer="matches", threshold=THRESHOLD, gap=GAP, name=f"fetch-{NAMES[size]}"
    )


def build() -> None:
    (HERE / "build").mkdir(exist_ok=True)
    for size, name in enumerate(NAMES):
        if not artifact_of(size).exists():
            artifact = compiled(size)
            artifact.save(artifact_of(size))
            print(f"{name}: {artifact.report}")


def vectors(size: int, file: str) -> np.ndarray:
    return np.fromfile(Path("datasets") / NAMES[size] / file, dtype=np.float32).astype(np.float64)


def client_of(io: Path) -> hg.Client:
    return hg.Client.load(io / "secret" / "client.key")


def client_key_generation(size: int, io: Path) -> None:
    client = hg.Client(hg.Artifact.load(artifact_of(size)).public())
    (io / "secret").mkdir(parents=True, exist_ok=True)
    client.write_evaluation_keys(io / "keys")
    client.save(io / "secret" / "client.key", overwrite=True)


def client_encode_encrypt_db(size: int, io: Path) -> None:
    (io / "ciphertexts_upload").mkdir(parents=True, exist_ok=True)
    rows = vectors(size, "db.bin").reshape(SHAPES[size])
    hg.encrypt_index(client_of(io), rows).save(io / "ciphertexts_upload" / "index.bin")


class Sent:
    """A server to whom a query is sent as a file, and who answers later."""

    class Later(Exception):
        pass

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, encrypted: hg.EncryptedInput) -> NoReturn:
        encrypted.save(self.path)
        raise self.Later


class Answered:
    """The same server, whose answer is a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, encrypted: hg.EncryptedInput) -> hg.EncryptedOutput:
        return hg.EncryptedOutput.load(self.path)


def client_encode_encrypt_query(size: int, io: Path) -> None:
    with contextlib.suppress(Sent.Later):
        hg.search(Sent(io / "ciphertexts_upload" / "query.bin"), client_of(io), vectors(size, "query.bin"))


def server_encrypted_compute(size: int, io: Path) -> None:
    (io / "ciphertexts_download").mkdir(exist_ok=True)
    begun = time.perf_counter()
    artifact = hg.Artifact.load(artifact_of(size))
    kept = hg.EncryptedInput.load(io / "ciphertexts_upload" / "index.bin")
    with hg.Server(artifact, hg.KeyFolder(io / "keys"), kept=kept) as server:
        read = time.perf_counter()
        answer = server.run(hg.EncryptedInput.load(io / "ciphertexts_upload" / "query.bin"))
        answer.save(io / "ciphertexts_download" / "results.bin")
    times = {"Reading keys and index": read - begun, "Encrypted computation": time.perf_counter() - read}
    (io / "server_reported_steps.json").write_text(json.dumps({name: round(s, 3) for name, s in times.items()}))


def client_decrypt_decode(size: int, io: Path) -> None:
    """The number of matches, as the harness' own file has it."""
    answered = Answered(io / "ciphertexts_download" / "results.bin")
    hits = hg.search(answered, client_of(io), vectors(size, "query.bin"))
    np.array(len(hits), dtype=np.int_).tofile(io / "results.bin")


STEPS = {
    step.__name__: step
    for step in (
        client_key_generation,
        client_encode_encrypt_db,
        client_encode_encrypt_query,
        server_encrypted_compute,
        client_decrypt_decode,
    )
}


def main() -> None:
    step, *rest = sys.argv[1:]
    if step == "build":
        build()
    elif "--count_only" not in rest:
        sys.exit("matches are counted, and payloads are not returned: run the harness with --count_only")
    elif step in STEPS:  # the others have nothing to do
        size = int(rest[0])
        if size >= len(NAMES):
            sys.exit(f"of the sizes {', '.join(NAMES)}, not {size}")
        STEPS[step](size, Path("io") / NAMES[size])


if __name__ == "__main__":
    main()
