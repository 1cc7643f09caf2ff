"""Files of encrypted inputs on the workers of an engine: what is there is kept, and killed workers lose nothing."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.answers import TOLERANCE, expected
from runtime.support import sample

import heliograph as hg
from heliograph.cli.main import main
from heliograph.errors import InternalError, ProgramError, TooLittleMemoryError, WireError
from heliograph.serving.work import spread
from heliograph.serving.work.spread import spread_files

COUNT = 6


@pytest.fixture(scope="module")
def files(artifact_file: Path, client: hg.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `mlp.helio`, `keys/`, `eval.keys` and the inputs 0.ct, 1.ct, ..."""
    folder = tmp_path_factory.mktemp("spread")
    (folder / "mlp.helio").write_bytes(artifact_file.read_bytes())
    client.write_evaluation_keys(folder / "keys")
    client.evaluation_keys().save(folder / "eval.keys")
    for seed in range(COUNT):
        client.encrypt(sample(seed)).save(folder / f"{seed}.ct")
    return folder


def targets(files: Path, out: Path, count: int = COUNT) -> dict[Path, Path]:
    out.mkdir(exist_ok=True)
    return {files / f"{seed}.ct": out / f"{seed}.ct" for seed in range(count)}


def right(client: hg.Client, files: Path, out: Path, seed: int) -> bool:
    given = hg.EncryptedInput.load(files / f"{seed}.ct")
    answer = client.decrypt(hg.EncryptedOutput.load(out / f"{seed}.ct"), of=given)
    return bool(np.abs(answer - expected(seed)).max() < TOLERANCE)


def workers() -> list[int]:
    """The local engine's processes that this one started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if b"heliograph.serving.work.worker" in line and parent == os.getpid():
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_the_command_takes_engines(
    engine: str, files: Path, tmp_path: Path, client: hg.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of a folder and of a file; what was made is kept in a second run, whichever engine made it."""
    if engine == "ray":
        pytest.importorskip("ray", reason="the Ray engine needs the extra `ray`")
    out, common = tmp_path / "out", ["--engine", engine, "--insecure"]
    given = [str(files / f"{seed}.ct") for seed in range(3)]
    main(["evaluate", str(files / "mlp.helio"), *given, "--keys", str(files / "keys"), "-o", str(out), "--workers", "2"]
         + common)  # fmt: skip
    assert "3 of 3 evaluated" in capsys.readouterr().out
    assert all(right(client, files, out, seed) for seed in range(3))
    more = [*given, str(files / "3.ct")]
    main(["evaluate", str(files / "mlp.helio"), *more, "--keys", str(files / "keys"), "-o", str(out), "--insecure"])
    assert "1 of 4 evaluated, 3 were there already" in capsys.readouterr().out
    single = tmp_path / "single.ct"
    main(
        ["evaluate", str(files / "mlp.helio"), given[1], "--keys", str(files / "eval.keys"), "-o", str(single)] + common
    )
    assert hg.EncryptedOutput.load(single).request == hg.EncryptedInput.load(given[1]).request
    assert not list(tmp_path.glob("**/.single.ct.made"))
    if engine == "ray":
        import ray

        ray.shutdown()


def test_killed_workers_lose_nothing(files: Path, tmp_path: Path, client: hg.Client) -> None:
    killed: list[int] = []
    seconds: dict[str, float | None] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if len(killed) < 3 and (fresh := [each for each in workers() if each not in killed]):
            os.kill(fresh[0], signal.SIGKILL)
            killed.append(fresh[0])

    def finished(path: Path, took: float | None) -> None:
        assert path.name not in seconds
        seconds[path.name] = took

    given = targets(files, tmp_path)
    spread_files(
        files / "mlp.helio", files / "keys", given, engine="local", workers=2, allow_insecure=True,
        progress=progress, finished=finished,
    )  # fmt: skip
    assert killed
    assert sorted(seconds) == [f"{seed}.ct" for seed in range(COUNT)]
    assert all(right(client, files, tmp_path, seed) for seed in range(COUNT))
    assert workers() == []


def test_an_input_that_kills_its_workers_is_given_up(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.05):
            for process in workers():
                os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(InternalError, match=r"5 workers died or went silent over .*0\.ct"):
            spread_files(files / "mlp.helio", files / "keys", targets(files, tmp_path, 1), engine="local")
    finally:
        stop.set()
        thread.join()


def test_an_input_that_is_refused_ends_the_rest(files: Path, tmp_path: Path) -> None:
    """What was finished before stays, and the error names the file."""
    bad = tmp_path / "bad.ct"
    bad.write_bytes(b"x")
    given = {**targets(files, tmp_path / "out", 1), bad: tmp_path / "out" / "bad.ct"}
    given |= {files / "5.ct": tmp_path / "out" / "5.ct"}
    with pytest.raises(WireError, match=r"bad\.ct"):
        spread_files(files / "mlp.helio", files / "keys", given, engine="local", allow_insecure=True)
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == ["0.ct"]
    assert workers() == []


def test_what_a_worker_refuses_is_raised(files: Path, tmp_path: Path) -> None:
    with pytest.raises(hg.SecurityError, match="security"):
        spread_files(files / "mlp.helio", files / "keys", targets(files, tmp_path, 1), engine="local")


def test_too_little_memory_is_said_with_the_figures(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "bytes_each", lambda memory_bytes, workers: 1 << 20)
    with pytest.raises(TooLittleMemoryError, match=r"needs \d+ MB, and a worker has 1 MB"):
        spread_files(files / "mlp.helio", files / "keys", targets(files, tmp_path, 1), engine="local")


def test_options_of_one_process_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", str(files / "mlp.helio"), str(files / "0.ct"), "--workers", "2", "--key-bytes", "1000"])
    assert "are for an evaluation in this process" in capsys.readouterr().err


def test_an_engine_of_no_name(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no engine 'other'"):
        spread_files(files / "mlp.helio", files / "keys", targets(files, tmp_path, 1), engine="other")
