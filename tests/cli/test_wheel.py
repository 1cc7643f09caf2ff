"""The wheel: what is in it, which Pythons take it, and that it runs in an environment of its own, outside the checkout."""

from __future__ import annotations

import email
import html
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg

ROOT = Path(hg.__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--isolated")


def call(*words: object, folder: Path | None = None, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program without this environment's paths; its exit status must be the one that is given."""
    own = ("PYTHON", "VIRTUAL_ENV", "PIP_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling (the extra `dev`)")
    folder = tmp_path_factory.mktemp("wheel")
    call(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT)
    (path,) = folder.glob("heliograph-*.whl")
    return path


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and this one's other packages but those that were left out."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


def install(wheel: Path, folder: Path, without: tuple[str, ...] = ()) -> Installed:
    venv.create(folder, with_pip=False, symlinks=True)
    made = Installed(folder)
    packages = folder / "others"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        # Files that start with the environment, such as that of an editable installation, stay out.
        if path.suffix != ".pth" and path.name.partition("-")[0].partition(".")[0] not in {"heliograph", *without}:
            (packages / path.name).symlink_to(path)
    call(*PIP, "--python", made.program("python"), "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "heliograph", folder=ROOT)
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert inside == files
    assert {"heliograph/py.typed", "heliograph/dsl/grammar.lark", "heliograph/dp/language/grammar.lark"} <= inside
    assert len(licences) == 1
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 5_000_000


@pytest.mark.parametrize(("version", "taken"), [("3.9", 0), ("3.10", 1), ("3.11", 1), ("3.13", 1)])
def test_pip_takes_it_for_every_python_from_3_10_on(version: str, taken: int, wheel: Path, tmp_path: Path) -> None:
    """From an index that says of the file what its metadata say, as PyPI does."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        needed = email.message_from_string(archive.read(name).decode())["Requires-Python"]
    page = tmp_path / "simple/heliograph/index.html"
    page.parent.mkdir(parents=True)
    link = f'<a href="{wheel.as_uri()}" data-requires-python="{html.escape(needed)}">{wheel.name}</a>'
    page.write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    options = ["--no-deps", "--only-binary", ":all:", "--python-version", version, "-d", tmp_path / "got"]
    index = ["--index-url", page.parents[1].as_uri()]
    done = call(*PIP, "download", *options, *index, "heliograph", status=0 if taken else 1)
    assert len(list((tmp_path / "got").glob("*.whl"))) == taken
    assert taken or "Could not find a version" in done.stderr


def test_the_wheel_runs_outside_the_checkout(installed: Installed, tmp_path: Path) -> None:
    code = "import heliograph; print(heliograph.__file__)"
    place = Path(call(installed.program("python"), "-c", code, folder=tmp_path).stdout.strip())
    assert place.is_relative_to(installed.folder)

    def heliograph(*words: object) -> str:
        return call(installed.program("heliograph"), *words, folder=tmp_path).stdout

    assert hg.__version__ in heliograph("--version")
    (tmp_path / "p.hg").write_text(
        "program outside\ninput x: secret tensor[4] in [-1, 1]\noutput y = sigmoid(x) with degree = 7\n"
    )
    x = np.array([-1.0, -0.25, 0.5, 1.0])
    np.save(tmp_path / "x.npy", x)
    heliograph("check", "p.hg")
    heliograph("compile", "p.hg", "-o", "p.helio", "--public", "p.public", "-q")
    heliograph("inspect", "p.helio", "--html", "page.html", "-q")
    assert "<svg" in (tmp_path / "page.html").read_text()
    heliograph("keygen", "p.public", "-q")
    heliograph("encrypt", "client.key", "x.npy", "-q")
    # Kernels of ours are compiled anew in every environment: two minutes, where there is no OpenFHE.
    backend = "native" if importlib.util.find_spec("openfhe") is None else "openfhe"
    heliograph("evaluate", "p.helio", "input.ct", "--backend", backend, "-q")
    heliograph("decrypt", "client.key", "output.ct", "-o", "y.npy", "-q")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 1 / (1 + np.exp(-x)), atol=2e-3)
    assert "epsilon in [" in heliograph("dp", "epsilon", "gaussian(noise_multiplier=2)", "--delta", "1e-5")


@pytest.mark.slow
def test_the_demonstration_runs_outside_the_checkout(installed: Installed, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the demonstration needs the extra `demo`")
    printed = call(installed.program("heliograph"), "demo", "--images", "2", "--quiet", folder=tmp_path).stdout
    assert "the class agrees on 100.0% of the images" in printed


def test_a_client_needs_neither_numba_nor_extras(wheel: Path, tmp_path: Path) -> None:
    """Where numba has no wheels a model is compiled, and its client runs on numpy."""
    others = (
        "numba",
        "llvmlite",
        "openfhe",
        "torch",
        "torchgen",
        "functorch",
        "sklearn",
        "matplotlib",
        "pandas",
        "fastapi",
    )
    made = install(wheel, tmp_path / "environment", without=others)

    def python(*lines: str) -> None:
        call(made.program("python"), "-c", "\n".join(("import heliograph as hg", *lines)), folder=tmp_path)

    text = "program tiny\\ninput x: secret tensor[2] in [-1, 1]\\noutput y = x[0] + x[1]\\n"
    python(
        f"artifact = hg.compile(hg.parse('{text}'))",
        "artifact.save('model.helio')",
        "client = hg.Client(artifact.public())",
        "client.save('client.key')",
        "client.evaluation_keys().save('eval.keys')",
        "client.encrypt([0.25, -0.75]).save('x.ct')",
        "assert abs(hg.simulate(artifact, [0.25, -0.75]) + 0.5) < 1e-2",
        "hg.RemoteServer",
    )
    pytest.importorskip("numba")
    keys = hg.EvaluationKeys.load(tmp_path / "eval.keys")
    with hg.Server(hg.Artifact.load(tmp_path / "model.helio"), keys) as server:
        server.run(hg.EncryptedInput.load(tmp_path / "x.ct")).save(tmp_path / "y.ct")
    python("assert abs(hg.Client.load('client.key').decrypt(hg.EncryptedOutput.load('y.ct')) + 0.5) < 1e-2")


def test_without_torch_the_extra_to_install_is_named(wheel: Path, tmp_path: Path) -> None:
    made = install(wheel, tmp_path / "environment", without=("torch", "torchgen", "functorch"))
    (tmp_path / "model.py").write_text("import torch\n\nnet = torch.nn.Linear(2, 2)\n")
    done = call(made.program("heliograph"), "compile", "model.py:net", folder=tmp_path, status=2)
    assert done.stderr.startswith("error: torch is not installed\n")
    assert "try: pip install 'heliograph[torch]'" in done.stderr
    code = "import heliograph as hg\ntry:\n    hg.trace\nexcept hg.MissingPackageError as error:\n    print(error.hint)"
    assert call(made.program("python"), "-c", code, folder=tmp_path).stdout == "pip install 'heliograph[torch]'\n"
