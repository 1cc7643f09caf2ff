"""What Windows and macOS lack, taken away here: each call has an answer there."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import heliograph as hg
from heliograph import files, machine
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.ckks.sharing import SHARE_RESULTS
from heliograph.cli.doctor import _cores
from heliograph.cli.serve import serve_command
from heliograph.errors import ProgramError, SecurityError, WireError
from heliograph.runtime.client import keyfile
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.client.shares import Shares
from heliograph.testing import RINGS, cryptor_checks
from heliograph.tools.measure import peak_rss_bytes
from heliograph.tools.measuring.calibrate import Calibration, Sample, machine_name

PROGRAM = "program tiny\ninput x: secret tensor[2] in [-1, 1]\noutput y = x[0] + x[1]\n"
# Of what the package calls, what CPython on Windows does not have, and what it lacks on macOS.
UNIX = (
    "fork",
    "geteuid",
    "getloadavg",
    "pread",
    "pwrite",
    "register_at_fork",
    "sched_getaffinity",
    "posix_fallocate",
    "sysconf",
)
FLAGS = ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC")
MACOS = ("sched_getaffinity", "posix_fallocate")


class Msvcrt(ModuleType):
    """`msvcrt.locking` on locks of ranges, which like those of Windows lie at the file's position."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.places: list[int] = []

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        self.places.append(os.lseek(handle, 0, os.SEEK_CUR))
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, count, self.places[-1])
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None


class Windows:
    """The module `sys` as it is there, for our modules alone: numba reads it too."""

    platform = "win32"

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def told_windows(patch: pytest.MonkeyPatch) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("heliograph.") and getattr(module, "sys", None) is sys:
            patch.setattr(module, "sys", Windows())


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Msvcrt]:
    """What Windows lacks is not here, and locks are its own."""
    made = Msvcrt()
    with monkeypatch.context() as patch:
        told_windows(patch)
        for name in (*UNIX, *FLAGS):
            patch.delattr(os, name, raising=False)
        for name in ("fcntl", "resource"):
            patch.setitem(sys.modules, name, None)
        patch.setitem(sys.modules, "msvcrt", made)
        patch.setattr(
            ctypes, "windll", SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=_status)), raising=False
        )
        patch.setattr(machine, "_MEMINFO", Path("/nowhere"))
        patch.setattr(machine, "_group_bytes", list)
        yield made


def _status(pointer: Any) -> int:
    """A machine with 16 GB, 5 GB of which are free."""
    status = pointer._obj
    assert status[0] & 0xFFFFFFFF == ctypes.sizeof(status) == 64
    status[1], status[2] = 16 * 10**9, 5 * 10**9
    return 1


@contextlib.contextmanager
def held_by_another(path: Path, place: int) -> Iterator[None]:
    """A byte of a file, locked by another process."""
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2])); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate(b"\n")


def test_windows_runs_the_suite_for_clients(windows: Msvcrt) -> None:
    """All of it but the check of forks, which are not there."""
    names = [check.name for check in cryptor_checks(Cryptor, RINGS[:1])]
    assert "forked processes" not in names
    assert {"secrets", "encryption", "decryption", "no two alike"} < set(names)


# ------------------------------------------------------------------------------------------ files and locks


def test_windows_writes_files_whole_and_private_ones(windows: Msvcrt, tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_file(path, b"one\r\n\n")
    files.write_file(path, b"two\n", private=True)
    with pytest.raises(WireError, match="already exists"):
        files.write_file(path, b"three", overwrite=False)
    with files.open_file(path) as file:
        assert file.read() == b"two\n"
    # What a killed process left is removed, and nothing else is there.
    (tmp_path / ".file.abcdefgh.part").write_bytes(b"tw")
    files.write_file(path, b"four")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert set(windows.places) == {files._LOCKED_BYTE}


def test_windows_opens_no_links_where_none_is_meant(windows: Msvcrt, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"it")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.open_file(tmp_path / "link") as file:
        assert file.read() == b"it"
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.open_file(tmp_path / "link", follow=False)


def test_windows_locks(windows: Msvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    handle = os.open(path, os.O_RDWR)
    try:
        os.lseek(handle, 3, os.SEEK_SET)
        with held_by_another(path, files._LOCKED_BYTE):
            with pytest.raises(BlockingIOError):
                files.lock(handle, wait=False)
            waited = []

            def wait(seconds: float) -> None:
                waited.append(seconds)
                raise TimeoutError

            with monkeypatch.context() as patch:
                patch.setattr(files.time, "sleep", wait)
                with pytest.raises(TimeoutError):
                    files.lock(handle, wait=True)
            assert waited == [files._POLL_S]
        files.lock(handle, wait=True)
        # Where it reads and writes is as before.
        assert os.read(handle, 9) == b"a"
    finally:
        os.close(handle)


def test_windows_counts_shared_results_under_a_lock(windows: Msvcrt, tmp_path: Path) -> None:
    shares = Shares("client", SHARE_RESULTS - 1)
    shares.beside(tmp_path / "client.key")
    shares.take()
    assert (tmp_path / ".lock").exists()
    assert windows.places[0] == files._LOCKED_BYTE
    with pytest.raises(SecurityError, match="has shared"):
        shares.take()


def test_what_is_shared_is_not_counted_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that has none: another process might count at the same time."""

    def none(handle: int, *, wait: bool) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files, "lock", none)
    shares = Shares("client")
    shares.beside(tmp_path / "client.key")
    with pytest.raises(WireError, match="cannot be counted"):
        shares.take()
    assert shares.count == 0


def test_windows_has_no_modes(windows: Msvcrt, tmp_path: Path) -> None:
    path = tmp_path / "client.key"
    path.write_bytes(b"")
    path.chmod(0o666)
    keyfile._check_mode(path)
    assert files.is_ours(path.stat(), 0o077)


def test_elsewhere_modes_count(tmp_path: Path) -> None:
    path = tmp_path / "client.key"
    path.write_bytes(b"")
    path.chmod(0o644)
    assert not files.is_ours(path.stat(), 0o077)
    assert files.is_ours(path.stat(), 0o022)
    with pytest.raises(SecurityError, match="others can read"):
        keyfile._check_mode(path)


# ------------------------------------------------------------------------------------------ from key to answer


def run(folder: Path, **options: Any) -> float:
    """The answer to 0.25 - 0.75 that a key file and a folder of keys give."""
    artifact = hg.compile(hg.parse(PROGRAM), hg.Options(security_bits=None, precision_bits=10))
    client = hg.Client(artifact.public(), allow_insecure=True)
    client.save(folder / "client.key")
    client.write_evaluation_keys(folder / "keys")
    client = hg.Client.load(folder / "client.key", allow_insecure=True)
    with hg.Server(artifact, hg.KeyFolder(folder / "keys"), allow_insecure=True, **options) as server:
        return float(client.decrypt(server.run(client.encrypt([0.25, -0.75])), share=True))


@pytest.mark.front
def test_windows_from_key_to_answer(windows: Msvcrt, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    assert run(tmp_path) == pytest.approx(-0.5, abs=1e-2)


def test_macos_from_key_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys that are mapped, and plaintexts in a file."""
    pytest.importorskip("numba")
    for name in MACOS:
        monkeypatch.delattr(os, name, raising=False)
    assert run(tmp_path, mapped=True, plaintexts=tmp_path / "plain") == pytest.approx(-0.5, abs=1e-2)


def test_windows_refuses_in_words_what_only_servers_do(windows: Msvcrt, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from heliograph.runtime.native.plaintext_file import PlaintextFile, PlaintextFileError

    with pytest.raises(ProgramError, match=r"cannot be mapped on Windows(?s:.)*leave `mapped` out"):
        run(tmp_path, mapped=True)
    with pytest.raises(PlaintextFileError, match="does not read and write at places"):
        PlaintextFile.of(tmp_path, "plain")
    with pytest.raises(ProgramError, match="servers run on Linux and macOS"):
        serve_command.main([str(tmp_path / "model.helio")], standalone_mode=False)


# ------------------------------------------------------------------------------------------ memory, cores, load


def test_windows_tells_its_memory(windows: Msvcrt) -> None:
    assert machine.available_bytes() == 5 * 10**9
    assert peak_rss_bytes_without_proc() == 0


def test_macos_tells_what_memory_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", Path("/nowhere"))
    monkeypatch.setattr(machine, "_group_bytes", list)
    told = machine.available_bytes()
    assert told == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def unknown(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine.available_bytes() is None


def test_the_peak_is_in_bytes_on_macos_and_in_kilobytes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_rss_bytes_without_proc() >= used * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert used <= peak_rss_bytes_without_proc() < 10 * used


def peak_rss_bytes_without_proc() -> int:
    def closed(path: Any, *more: Any, **options: Any) -> io.TextIOWrapper:
        raise FileNotFoundError(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", closed)
        return peak_rss_bytes()


def test_cores_and_load_where_the_system_tells_neither(windows: Msvcrt) -> None:
    assert machine.usable_cores() == os.cpu_count()
    assert machine.load_average() is None
    assert f"{os.cpu_count()} threads" in machine_name() or "OMP_NUM_THREADS" in os.environ
    assert _cores().detail == f"{os.cpu_count()} usable, load average unknown"
    ring = Ring(10, 40, 30, 2, 1, None)
    samples = (Sample("rotate", ring, 1, 1.0),)
    assert "1 s, load average unknown" in str(Calibration(BUILT_IN, samples, 1.0, None))


def test_imports_without_the_modules_of_unix() -> None:
    """Every module outside the server's room, on a Python as it is on Windows."""
    code = f"""
import os, sys
import numpy, scipy.optimize, networkx, threading, asyncio, subprocess, tempfile, multiprocessing
try:
    import numba.np.ufunc.parallel, torch, sklearn.base, matplotlib, opacus
except ImportError:
    pass
for name in {UNIX + FLAGS!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import importlib, pkgutil
import heliograph
for found in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
    if found.name != "heliograph.__main__" and not found.name.startswith("heliograph.serving"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in heliograph.errors.INSTALLS | {{"ray": ""}}, error
importlib.import_module("heliograph.serving.remote.server")
print("all")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("all\n"), done.stderr[-2000:]
