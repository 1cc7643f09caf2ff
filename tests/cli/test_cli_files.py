"""The file workflow: keygen, encrypt, evaluate, decrypt as separate processes; run; passphrases; refusals."""

from __future__ import annotations

import os
import pty
import shutil
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Call

import heliograph as hg

_PROGRAM = "from heliograph.cli.main import main; main()"


def heliograph(folder: Path, *arguments: object) -> str:
    """Run a command in a process of its own; its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.front
def test_client_and_server_as_separate_processes(folder: Path, tmp_path: Path) -> None:
    client, server = tmp_path / "client", tmp_path / "server"
    client.mkdir()
    server.mkdir()
    shutil.copy(folder / "p.helio", client)
    shutil.copy(folder / "x.npy", client)
    shutil.copy(folder / "m.helio", server)
    (client / "pass.txt").write_text("correct horse\n")
    secret = ("--passphrase-file", "pass.txt")
    heliograph(client, "keygen", "--insecure", "p.helio", "-o", "client.key", "--keys", "eval.keys", *secret)
    heliograph(client, "encrypt", "--insecure", "client.key", "x.npy", "--sample", 4, "-o", "input.ct", *secret)
    for name in ("eval.keys", "input.ct"):
        shutil.move(client / name, server / name)
    heliograph(server, "evaluate", "--insecure", "m.helio", "input.ct", "--keys", "eval.keys", "-o", "output.ct")
    assert not (server / "client.key").exists()
    shutil.move(server / "output.ct", client / "output.ct")
    printed = heliograph(client, "decrypt", "--insecure", "client.key", "output.ct", "-o", "y.npy", *secret)
    result = np.load(client / "y.npy")
    expected = hg.simulate(hg.Artifact.load(folder / "m.helio"), np.load(folder / "x.npy")[4], noisy=False)
    assert np.abs(result - expected).max() < 1e-6
    assert f"{result[0]:.4f}"[:6] in printed
    assert stat.S_IMODE((client / "client.key").stat().st_mode) == 0o600


@pytest.fixture
def work(call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the samples, the artifact, its public part and fresh keys."""
    for name in ("x.npy", "m.helio", "p.helio", "two.npz"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("keygen", "--insecure", "p.helio", "--quiet").code == 0
    return tmp_path


def test_json_of_every_step(work: Path, call: Call) -> None:
    made = call("keygen", "--insecure", "m.helio", "-o", "k2", "--keys", "e2", "--public", "p2", "--json").json
    assert made["protected"] is False
    assert made["evaluation_key_bytes"] == (work / "e2").stat().st_size
    assert hg.PublicArtifact.load("p2").fingerprint == made["fingerprint"]
    sent = call("encrypt", "--insecure", "k2", "x.npy", "--sample", 0, "--json").json
    assert sent["bytes"] == (work / "input.ct").stat().st_size
    assert sent["client"] == made["client"]
    assert sent["request"] == hg.EncryptedInput.load("input.ct").request
    answer = call("evaluate", "--insecure", "m.helio", "input.ct", "--keys", "e2", "--json").json
    assert answer["predicted_ms"] == call("inspect", "m.helio", "--json").json["predicted"]["evaluate_ms"]
    assert answer["seconds"] > 0
    assert {"fc1", "act", "fc2"} <= set(answer["seconds_by_layer"])
    result = call("decrypt", "--insecure", "k2", "output.ct", "--of", "input.ct", "--json").json
    call("encrypt", "--insecure", "k2", "x.npy", "--sample", 0, "-o", "again.ct")
    refused = call("decrypt", "--insecure", "k2", "output.ct", "--of", "again.ct")
    assert (refused.code, "answer to other inputs" in refused.err) == (2, True)
    ran = call("run", "--insecure", "m.helio", "--input", "x.npy", "--sample", 0, "--json").json
    assert ran["predicted_ms"] == answer["predicted_ms"]
    (name,) = result["outputs"]
    assert np.abs(np.array(result["outputs"][name]) - np.array(ran["outputs"][name])).max() < 1e-6
    assert ran["max_abs_error_against_simulation"] < 1e-6
    assert set(ran["seconds"]) == {"keys", "encrypt", "evaluate", "decrypt"}


def test_run_prints_result_error_and_times(work: Path, call: Call) -> None:
    shown = call("run", "--insecure", "m.helio", "--input", "x.npy", "--sample", 1)
    assert "INSECURE" in shown.out
    assert "error against the simulation" in shown.out
    assert "evaluate" in shown.out
    # No bar is drawn where stderr is not a terminal.
    assert all(line.startswith("INSECURE: ") for line in shown.err.splitlines())


def test_a_secret_key_is_not_overwritten(work: Path, call: Call) -> None:
    before = (work / "client.key").read_bytes()
    refused = call("keygen", "--insecure", "p.helio")
    assert refused.code == 2
    assert "client.key already exists" in refused.err
    assert (work / "client.key").read_bytes() == before
    assert call("keygen", "--insecure", "p.helio", "--force", "--quiet").code == 0
    assert (work / "client.key").read_bytes() != before
    assert call("keygen", "--insecure", "p.helio", "-o", "same", "--keys", "same").code == 2


def test_nothing_is_overwritten_without_force(work: Path, call: Call) -> None:
    """Neither by its default name nor by one that was given; with --force it is."""
    assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0).code == 0
    assert call("evaluate", "--insecure", "m.helio", "input.ct").code == 0
    assert call("decrypt", "--insecure", "client.key", "output.ct", "-o", "y.npy").code == 0
    assert call("inspect", "m.helio", "--html", "m.html", "--dot", "m.dot").code == 0
    for name, arguments in (
        ("input.ct", ("encrypt", "--insecure", "client.key", "x.npy", "--sample", 1)),
        ("output.ct", ("evaluate", "--insecure", "m.helio", "input.ct")),
        ("y.npy", ("decrypt", "--insecure", "client.key", "output.ct", "-o", "y.npy")),
        ("eval.keys", ("keygen", "--insecure", "p.helio", "-o", "another.key")),
        ("m.html", ("inspect", "m.helio", "--html", "m.html")),
        ("m.dot", ("inspect", "m.helio", "--dot", "m.dot")),
    ):
        before = (work / name).read_bytes()
        refused = call(*arguments)
        assert (refused.code, f"{name} already exists" in refused.err) == (2, True), arguments
        assert (work / name).read_bytes() == before
        assert call(*arguments, "--force", "--quiet").code == 0, arguments
    # A public part that is another's is left alone even so: --force is for the keys.
    (work / "mine").write_bytes(b"mine")
    others = ("keygen", "--insecure", "m.helio", "-o", "k", "--keys", "e", "--force", "--public")
    assert "mine already exists" in call(*others, "mine").err
    assert not (work / "k").exists()
    assert call(*others, "p.helio").code == 0


def test_many_inputs_go_on_where_they_were_stopped(work: Path, call: Call) -> None:
    names = [f"{number}.ct" for number in range(3)]
    for number, name in enumerate(names):
        assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", number, "-o", name, "--quiet").code == 0
    first = call("evaluate", "--insecure", "m.helio", names[0], names[1], "-o", "outputs", "--json").json
    assert [Path(entry["encrypted"]).name for entry in first["outputs"]] == names[:2]
    assert all(entry["seconds"] > 0 for entry in first["outputs"])
    # What a run that was stopped left of a file is no output.
    (work / "outputs" / "0.ct").write_bytes((work / "outputs" / "0.ct").read_bytes()[:-1])
    kept = (work / "outputs" / "1.ct").stat().st_mtime_ns
    again = call("evaluate", "--insecure", "m.helio", *names, "-o", "outputs")
    assert "2 of 3 evaluated, 1 were there already" in again.out
    assert (work / "outputs" / "1.ct").stat().st_mtime_ns == kept
    for number, name in enumerate(names):
        found = call("decrypt", "--insecure", "client.key", work / "outputs" / name, "--json").json["outputs"]
        expected = hg.simulate(hg.Artifact.load("m.helio"), np.load("x.npy")[number], noisy=False)
        assert np.abs(np.array(found[next(iter(found))]) - expected).max() < 1e-6
    # A malformed input loses nothing of what came before it.
    (work / "bad.ct").write_bytes(b"x")
    shutil.rmtree(work / "outputs")
    assert call("evaluate", "--insecure", "m.helio", names[0], "bad.ct", "-o", "outputs").code == 2
    assert [path.name for path in (work / "outputs").glob("[!.]*")] == [names[0]]
    assert "is the input itself" in call("evaluate", "--insecure", "m.helio", *names[:2], "-o", ".").err
    assert "two inputs are called" in call("evaluate", "--insecure", "m.helio", names[0], f"./{names[0]}").err


def test_keys_in_a_folder_are_completed(work: Path, call: Call) -> None:
    made = call("keygen", "--insecure", "p.helio", "-o", "k3", "--keys", "folder/", "--json").json
    files = {file: file.read_bytes() for file in (work / "folder").iterdir()}
    lost = work / "folder" / "relinearization.key"
    lost.unlink()
    again = call("keygen", "--insecure", "p.helio", "-o", "k3", "--keys", "folder/", "--json").json
    assert again == made
    assert all(file.read_bytes() == data for file, data in files.items() if file != lost)
    assert call("encrypt", "--insecure", "k3", "x.npy", "--sample", 2, "--quiet").code == 0
    assert call("evaluate", "--insecure", "m.helio", "input.ct", "--keys", "folder", "--quiet").code == 0
    result = call("decrypt", "--insecure", "k3", "output.ct", "--json").json["outputs"]
    expected = hg.simulate(hg.Artifact.load("m.helio"), np.load("x.npy")[2], noisy=False)
    assert np.abs(np.array(next(iter(result.values()))) - expected).max() < 1e-6
    refused = call("keygen", "--insecure", "p.helio", "-o", "k4", "--keys", "folder/")
    assert refused.code == 2
    assert "another client" in refused.err


def test_decrypted_results_are_for_their_owner_only(work: Path, call: Call) -> None:
    """Whatever the umask is, and other files as it says."""
    assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0).code == 0
    for umask, shared in ((0o022, 0o644), (0o077, 0o600), (0o000, 0o644)):
        before = os.umask(umask)
        try:
            assert call("evaluate", "--insecure", "--force", "m.helio", "input.ct", "-o", "y.ct").code == 0
            for name in ("y.npy", "y.npz"):
                assert call("decrypt", "--insecure", "--force", "client.key", "y.ct", "-o", name).code == 0
        finally:
            os.umask(before)
        modes = [stat.S_IMODE((work / name).stat().st_mode) for name in ("y.npy", "y.npz", "y.ct")]
        assert modes == [0o600, 0o600, shared]


def test_a_pipe_in_the_place_of_a_file_is_refused(work: Path, call: Call) -> None:
    """Nothing waits for someone to write into it."""
    os.mkfifo(work / "pipe")
    assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0).code == 0
    assert call("evaluate", "--insecure", "m.helio", "input.ct").code == 0
    for command in (
        "inspect pipe",
        "keygen pipe -o other.key",
        "encrypt pipe x.npy",
        "encrypt client.key pipe",
        "evaluate pipe input.ct",
        "evaluate m.helio pipe",
        "evaluate m.helio pipe input.ct -o outputs",
        "evaluate m.helio input.ct --keys pipe",
        "evaluate m.helio input.ct --plain pipe",
        "decrypt pipe output.ct",
        "decrypt client.key pipe",
        "decrypt client.key output.ct --of pipe",
        "run m.helio --input pipe",
        "check pipe",
        "fmt pipe",
    ):
        name, *rest = command.split()
        insecure = () if name in ("inspect", "check", "fmt") else ("--insecure",)
        force = ("--force",) if name == "evaluate" else ()
        refused = call(name, *insecure, *force, *rest)
        assert refused.code == 2, command
        assert "not a file" in refused.err, (command, refused.err)
    # The keys of a folder, one of which is a pipe; its index; an output that is there; the mark of one.
    assert call("keygen", "--insecure", "p.helio", "-o", "k4", "--keys", "folder/", "--quiet").code == 0
    assert call("encrypt", "--insecure", "k4", "x.npy", "--sample", 0, "-o", "4.ct").code == 0
    for name in ("relinearization.key", "index.keys"):
        (work / "folder" / name).unlink()
        os.mkfifo(work / "folder" / name)
        assert "not a file" in call("evaluate", "--insecure", "--force", "m.helio", "4.ct", "--keys", "folder").err
    assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0, "-o", "5.ct").code == 0
    (work / "outputs").mkdir(exist_ok=True)
    for name in ("5.ct", ".5.ct.made", "input.ct"):
        os.mkfifo(work / "outputs" / name)
    assert "2 of 2 evaluated" in call("evaluate", "--insecure", "m.helio", "input.ct", "5.ct", "-o", "outputs").out
    assert (work / "outputs" / "5.ct").is_file()


def test_a_passphrase_may_come_through_a_pipe(work: Path) -> None:
    """As a shell's process substitution gives it."""
    arguments = "keygen --insecure p.helio -o k6 --keys e6 --passphrase-file <(echo correct horse)"
    command = f"{sys.executable} -c '{_PROGRAM}' {arguments}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert hg.Client.load(work / "k6", "correct horse", allow_insecure=True).id


def test_passphrases_are_never_arguments(work: Path, call: Call) -> None:
    (work / "pass").write_text("one\n")
    (work / "wrong").write_text("two\n")
    (work / "empty").write_text("\n")
    keys = ("-o", "locked", "--keys", "locked.keys")
    assert call("keygen", "--insecure", "p.helio", *keys, "--passphrase-file", "pass", "--quiet").code == 0
    for arguments, words in (
        (("encrypt", "--insecure", "locked", "x.npy", "--sample", 0), "is protected by a passphrase"),
        (("encrypt", "--insecure", "locked", "x.npy", "--sample", 0, "--passphrase-file", "wrong"), "does not open"),
        (("encrypt", "--insecure", "locked", "x.npy", "--sample", 0, "--passphrase-file", "empty"), "empty first line"),
        (("encrypt", "--insecure", "locked", "x.npy", "--sample", 0, "--passphrase-file", "none"), "cannot be read"),
        (("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0, "--passphrase-file", "pass"), "not protected"),
        (("keygen", "--insecure", "p.helio", "-o", "new", "--passphrase", "secret"), "unexpected extra argument"),
    ):
        refused = call(*arguments)
        assert refused.code == 2
        assert words in refused.err
        assert "Traceback" not in refused.err
    options = ("--insecure", "--sample", 0, "--passphrase-file", "pass", "--quiet")
    assert call("encrypt", "--insecure", "locked", "x.npy", *options).code == 0


def test_a_passphrase_is_asked_for_on_a_terminal(work: Path) -> None:
    (work / "pass").write_text("one\n")
    keys = ("-o", "locked", "--keys", "locked.keys")
    heliograph(work, "keygen", "--insecure", "p.helio", *keys, "--passphrase-file", "pass")
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "encrypt", "--insecure", "locked", "x.npy", "--sample", "0", "-o", "asked.ct"],
        cwd=work,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1])},
    )
    os.close(theirs)
    shown = b""
    try:
        while b"passphrase of" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"one\n")
        child.communicate(timeout=60)
    finally:
        child.kill()
        os.close(ours)
    assert child.returncode == 0
    assert (work / "asked.ct").exists()
    assert b"one" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("encrypt client.key nothing.npy", "nothing.npy cannot be read"),
        ("encrypt client.key x.npy", "x.npy holds more samples than one input takes"),
        ("encrypt client.key x.npy --sample 99", "has no sample 99"),
        ("encrypt client.key two.npz --sample 0", "needed are 'x'"),
        ("encrypt client.key big.npy", "outside its range"),
        ("encrypt client.key objects.npy", "is not a .npy or .npz file"),
        ("encrypt client.key text.npy", "real numbers are needed"),
        ("encrypt eval.keys x.npy --sample 0", "holds: evaluation keys; expected: a client's secret key"),
        ("encrypt m.helio x.npy --sample 0", "holds: artifact; expected: a client's secret key"),
        ("evaluate m.helio nothing.ct", "nothing.ct cannot be read"),
        ("evaluate m.helio eval.keys", "holds: evaluation keys; expected: encrypted inputs"),
        ("evaluate m.helio input.ct --keys client.key", "holds: a client's secret key; expected: evaluation keys"),
        ("evaluate p.helio input.ct", "holds: public artifact; expected: artifact"),
        ("evaluate m.helio cut.ct", "is truncated"),
        ("evaluate m.helio flipped.ct", "is damaged"),
        ("evaluate m.helio other.ct", "belong to another client of the same artifact"),
        ("decrypt client.key input.ct", "holds: encrypted inputs; expected: encrypted outputs"),
        ("keygen x.npy", "is not a Heliograph file"),
        ("run p.helio --input x.npy", "holds: public artifact; expected: artifact"),
    ],
)
def test_refusals_in_words(work: Path, call: Call, arguments: str, words: str) -> None:
    np.save("big.npy", np.full(8, 7.0))
    np.save("objects.npy", np.array([{}] * 8, dtype=object), allow_pickle=True)
    np.save("text.npy", np.array(["a"] * 8))
    assert call("encrypt", "--insecure", "client.key", "x.npy", "--sample", 0, "--quiet").code == 0
    data = bytearray((work / "input.ct").read_bytes())
    (work / "cut.ct").write_bytes(data[:-100])
    data[len(data) // 2] ^= 1
    (work / "flipped.ct").write_bytes(data)
    if "other.ct" in arguments:
        call("keygen", "--insecure", "p.helio", "-o", "other.key", "--keys", "other.keys", "--quiet")
        call("encrypt", "--insecure", "other.key", "x.npy", "--sample", 0, "-o", "other.ct", "--quiet")
    command, *rest = arguments.split()
    result = call(command, "--insecure", *rest)
    assert result.code == 2
    assert words in result.err
    assert result.out == ""


def test_results_of_two_outputs_are_written_by_name(tmp_path: Path) -> None:
    from heliograph.array_files import read_arrays, write_array

    write_array(tmp_path / "y.npz", (np.arange(2.0), np.ones(3)), ["a", "b"])
    found = read_arrays(tmp_path / "y.npz")
    assert set(found) == {"a", "b"}
    assert np.array_equal(found["b"], np.ones(3))


def test_a_bomb_in_an_npz_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph import array_files
    from heliograph.errors import ProgramError

    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1_000_000))
    monkeypatch.setattr(array_files, "MAX_FILE_BYTES", 1_000_000)
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    with pytest.raises(ProgramError, match="unpacks to more"):
        array_files.read_arrays(tmp_path / "bomb.npz")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """What compresses as numbers do is read; so is a small file that is all zeros, and a large one without compression."""
    from heliograph.array_files import read_arrays
    from heliograph.errors import ProgramError

    zeros = np.zeros((9, 1 << 20))
    np.savez_compressed(tmp_path / "bomb.npz", x=zeros)
    tracemalloc.start()
    try:
        with pytest.raises(ProgramError, match="unpacks to 75497") as caught:
            read_arrays(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "numpy.savez" in str(caught.value)
    np.savez_compressed(tmp_path / "small.npz", x=zeros[:7])
    np.savez(tmp_path / "plain.npz", x=zeros)
    assert read_arrays(tmp_path / "small.npz")["x"].shape == (7, 1 << 20)
    assert read_arrays(tmp_path / "plain.npz")["x"].shape == (9, 1 << 20)


def test_progress_is_drawn_on_a_terminal_only(work: Path) -> None:
    arguments = ["run", "--insecure", "m.helio", "--input", "x.npy", "--sample", "0"]
    for quiet in ((), ("--quiet",)):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments, *quiet],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1]), "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        assert (b"evaluation keys" in shown) == (not quiet)
        assert (out == b"") == bool(quiet)


def test_drawings_are_written_without_the_bill(work: Path, call: Call) -> None:
    found = call("inspect", "m.helio", "--html", "drawn.html")
    assert (found.code, found.out) == (0, "")
    assert "wrote drawn.html" in found.err
    assert "All figures" in call("inspect", "m.helio").out
    both = call("inspect", "m.helio", "--dot", "drawn.dot", "--depth")
    assert "critical path" in both.out
    assert "All figures" not in both.out


def test_a_token_for_a_new_folder_says_so(work: Path, call: Call) -> None:
    first = call("token", "bob", "--data", "nowhere")
    assert first.code == 0
    assert "nowhere is a new folder" in first.err
    again = call("token", "carol", "--data", "nowhere")
    assert (again.code, "new folder" in again.err) == (0, False)
    refused = call("token", "bob", "--data", "typo", "--revoke")
    assert (refused.code, "typo is not the folder of a server" in refused.err) == (2, True)
    assert not Path("typo").exists()


def test_a_scale_that_is_too_large_is_named(work: Path, call: Call) -> None:
    Path("square.hg").write_text("program square\ninput x: secret tensor[8] in [-1, 1]\noutput y = x * x\n")
    refused = call("compile", "square.hg", "--log-ring", 12, "--scale-bits", 50)
    assert refused.code == 2
    assert "it needs 1 level\n" in refused.err
    assert "1 level of 50 bits is not secure" in refused.err
    assert "smaller --scale-bits or none" in refused.err
    assert "larger --log-ring or none" in refused.err
