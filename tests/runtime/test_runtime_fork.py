"""Copies of a process: no two draw the same random numbers, and what OpenFHE was used for before a fork is refused in the
child, in words.

Each test is a script in a process of its own, with one OpenMP thread (with which OpenFHE goes on in a child, and gives
secrets away) or two (with which it would wait for ever).
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from runtime.support import toy_artifact

import heliograph as hg
from heliograph.errors import SecurityError
from heliograph.runtime import process

_BEGIN = """
import concurrent.futures, contextlib, hashlib, multiprocessing, os, sys, warnings
import numpy as np
import heliograph as hg
from heliograph.errors import InsecureWarning, SecurityError

warnings.simplefilter("ignore", InsecureWarning)
X = np.linspace(-1, 1, 8)


def in_child(function):
    "What the function returns, or the kind and text of what it raises, in a forked child."
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = str(function())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        [os.write(write, told.encode()[i : i + 4000]) for i in range(0, len(told), 4000)]
        os._exit(0)
    os.close(write)
    told = b""
    while piece := os.read(read, 4000):
        told += piece
    os.waitpid(pid, 0)
    os.close(read)
    return told.decode()


def encrypted(client):
    "The ciphertexts alone: a message has a random request beside them."
    message = client.encrypt(X)
    return hashlib.sha256(b"".join(bytes(message.blob(name)) for name in message.names())).hexdigest()


def refused(told):
    assert told.startswith("SecurityError: ") and "is refused in a forked process" in told and "spawn" in told, told


def load():
    return hg.Artifact.load("model")


def new_client():
    return hg.Client(load().public(), allow_insecure=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    toy_artifact().save(tmp_path / "model")
    return tmp_path


def script(folder: Path, text: str, threads: int) -> None:
    path = folder / "script.py"
    path.write_text(_BEGIN + textwrap.dedent(text))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(hg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("mended", [True, False])
def test_two_copies_of_one_image_do_not_give_the_secret_key_away(folder: Path, mended: bool) -> None:
    """What a server does with the ciphertexts of two copies of one client, which encrypt the same sample: it divides the
    difference of the first halves by that of the second. A fork without the guard looks to itself like such a copy. Where
    errors come from a generator whose state the copies share, the server reads every coefficient of the key.
    """
    script(
        folder,
        """
        mended = MENDED
        from heliograph.ckks.keys import EvaluationKey
        from heliograph.ckks.ring import Ring
        from heliograph.runtime.client.cryptor import cryptor, randomness
        from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
        from heliograph.runtime import process
        from heliograph.runtime.wire.forms import read_ciphertext

        # Kernels end a forked process; numpy's numbers are the same.
        cryptor.arithmetic = NumpyArithmetic
        if not mended:
            # One stream for all objects, as a library's generator is.
            stream = randomness.SecretStream()
            cryptor.SecretStream = lambda: stream
        client = new_client()
        client.encrypt(X)
        process.is_forked_copy = lambda: False
        ring, (spec,) = client.public.ring, client.public.inputs
        q = ring.primes[0]

        def sent():
            return client.encrypt(X).blob("x/0").hex()

        def rows(data):
            b, a = read_ciphertext(bytes.fromhex(data), ring, spec.levels[0], client.id, "x")
            return b[0].astype(object), a[0].astype(object)

        copies = [in_child(sent), in_child(sent)]
        (b1, a1), (b2, a2) = map(rows, copies)
        assert not np.array_equal(a1, a2)
        found = [int(b) * pow(int(a), -1, q) % q for b, a in zip((b1 - b2) % q, (a2 - a1) % q)]
        secret = np.frombuffer(client._cryptor.secret_bytes(), "<u8", ring.ring_dim).astype(object)
        same = int((np.array(found, dtype=object) == secret).sum())
        assert same == (0 if mended else ring.ring_dim), same

        turned, product = client.public.evaluation_keys[0], client.public.evaluation_keys[-1]
        assert (turned.kind, product.kind) == ("rotation", "relinearization")
        pair = EvaluationKey("pair", Ring(11, 60, 50, 14, 4, None, (1, 1)), "encapsulation")
        deep = cryptor.Cryptor(pair.ring)
        made = []

        def noted(numbers):
            "What the client is given, and overwrites after use."
            made.append(numbers.copy())
            return numbers

        cryptor.gaussian = lambda *given: noted(randomness.gaussian(*given))
        cryptor.sparse_ternary = lambda *given: noted(randomness.sparse_ternary(*given))

        def drawn(draw):
            "The secret numbers that a copy draws."
            def told():
                made.clear()
                draw()
                return hashlib.sha256(b"".join(each.tobytes() for each in made)).hexdigest()
            return told

        for draw in (
            lambda: made.append(np.frombuffer(cryptor.Cryptor(ring).secret_bytes(), "<u8")),
            lambda: client._cryptor.evaluation_key_bytes(turned),
            lambda: client._cryptor.evaluation_key_bytes(product),
            lambda: deep.evaluation_key_bytes(pair),
        ):
            assert (in_child(drawn(draw)) != in_child(drawn(draw))) == mended
        """.replace("MENDED", str(mended)),
        1,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_parent_made_is_refused_in_a_child(folder: Path, threads: int) -> None:
    script(
        folder,
        """
        artifact, client = load(), new_client()
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
        sent = client.encrypt(X)
        answer = server.run(sent)
        key = client.public.evaluation_keys[0]
        for what in (
            lambda: encrypted(client),
            lambda: client.decrypt(answer),
            lambda: client.evaluation_keys(),
            lambda: client.write_evaluation_keys("keys"),
            lambda: client._cryptor.evaluation_key_bytes(key),
            lambda: new_client(),
            lambda: server.run(sent),
            lambda: hg.Server(artifact, client.evaluation_keys(), allow_insecure=True),
            lambda: hg.debug(artifact, X),
            # A child of a child, and a thread, which has a generator of its own: one rule for all.
            lambda: in_child(lambda: encrypted(client)).split(": ", 1)[1] and encrypted(client),
        ):
            refused(in_child(what))
        # Releasing what was inherited does no harm, and the parent goes on.
        assert in_child(server.close) == "None"
        assert encrypted(client) != encrypted(client)
        assert np.abs(client.decrypt(server.run(client.encrypt(X))) - client.decrypt(answer)).max() < 1e-6
        """,
        threads,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_pools_that_fork(folder: Path, threads: int) -> None:
    """Python's default on Linux up to 3.13."""
    script(
        folder,
        """
        client = new_client()
        key = client.public.evaluation_keys[0]

        def encrypt(number):
            return client.encrypt(X * (1 - 0.1 * number)).to_bytes()

        def make_key(number):
            return client._cryptor.evaluation_key_bytes(key)

        forking = multiprocessing.get_context("fork")
        for work in (encrypt, make_key):
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=forking) as pool:
                for future in [pool.submit(work, number) for number in range(2)]:
                    try:
                        future.result()
                    except SecurityError as error:
                        refused(f"SecurityError: {error}")
                    else:
                        raise AssertionError("two workers share their randomness")
            with forking.Pool(2) as pool:
                try:
                    pool.map(work, range(2))
                except SecurityError as error:
                    refused(f"SecurityError: {error}")
                else:
                    raise AssertionError("two workers share their randomness")
        """,
        threads,
    )


def test_pools_that_spawn_work(folder: Path) -> None:
    script(
        folder,
        """
        def work(number):
            client = hg.Client.load("key", allow_insecure=True)
            return encrypted(client)

        if __name__ == "__main__":
            new_client().save("key")
            spawning = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawning) as pool:
                assert len(set(pool.map(work, range(4)))) == 4
        """,
        1,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_a_server_that_loads_before_it_forks(folder: Path, threads: int) -> None:
    """As `gunicorn --preload` does: the parent imports, reads and compiles, the workers make clients and servers."""
    script(
        folder,
        """
        with contextlib.suppress(ImportError):
            import openfhe
        artifact, public = load(), load().public()
        compiled = hg.compile(hg.parse("program p\\ninput x: secret tensor[2] in [-1, 1]\\noutput y = x * x\\n"))
        expected = hg.simulate(artifact, X, noisy=False)

        def serve():
            client = hg.Client(public, allow_insecure=True)
            with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
                sent = client.encrypt(X)
                assert np.abs(client.decrypt(server.run(sent)) - expected).max() < 1e-6
            return hashlib.sha256(bytes(sent.blob("x/0"))[-4096:]).hexdigest() + client.id

        told = [in_child(serve) for _ in range(3)]
        assert len({text[:64] for text in told}) == len({text[64:] for text in told}) == 3, told
        # The parent may still be the one that uses it; from then on its children may not.
        client = hg.Client(public, allow_insecure=True)
        refused(in_child(serve))
        """,
        threads,
    )


def test_a_fork_that_was_not_pythons_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    process.require_own_process("a test")
    process.note_use()
    process.require_own_process("a test")
    monkeypatch.setattr(process, "_user", os.getpid() + 1)
    with pytest.raises(SecurityError, match=r"(?s)a test is refused in a forked process.*spawn"):
        process.require_own_process("a test")
