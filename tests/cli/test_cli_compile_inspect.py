"""`compile`, `inspect` and the help: what they print, and in which words they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from cli.conftest import Call

import heliograph as hg
from heliograph.artifact.artifact import VERSION
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.costs import save_costs
from heliograph.ckks.costs import BUILT_IN
from heliograph.cli import doctor
from heliograph.cli.compile import load_object
from heliograph.cli.main import _COMMANDS, cli
from heliograph.cli.options import in_flags
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import Argument, MissingPackageError, said
from heliograph.runtime.openfhe.context import make_context

PACKAGE = Path(hg.__file__).parent


def test_every_command_has_help(call: Call) -> None:
    result = call("--help")
    assert result.code == 0
    for name in _COMMANDS:
        assert f"  {name}" in result.out
    for name in ("compile", "inspect", "keygen", "encrypt", "evaluate", "decrypt", "run", "doctor"):
        shown = call(name, "--help")
        assert shown.code == 0
        assert "--json" in shown.out
        assert "--quiet" in shown.out


def test_help_shows_every_option_in_one_section() -> None:
    sectioned = [*_commands_in_sections(cli)]
    assert {"compile", "refine", "certify", "inspect", "serve", "train"} <= {command.name for command, _ in sectioned}
    for command, context in sectioned:
        shown = command.get_help(context)
        sections = [
            re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", part)
            for part in re.split(r"(?m)^\S.*:\n", shown[shown.index("\n\n") :])
        ]
        options = [each for each in command.params if isinstance(each, click.Option)]
        names = sorted(each for section in sections for each in section)
        assert names == sorted([*(max(each.opts, key=len) for each in options), "--help"])
        # What stands last is common to all commands.
        assert set(sections[-1]) <= {"--json", "--quiet", "--help"}
        assert max(map(len, shown.splitlines())) <= 100


def _commands_in_sections(group: click.Group) -> Iterator[tuple[SectionedCommand, click.Context]]:
    context = click.Context(group, max_content_width=100, terminal_width=100, help_option_names=["-h", "--help"])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands_in_sections(command)
        elif isinstance(command, SectionedCommand):
            yield command, click.Context(command, parent=context, info_name=name)


def test_the_main_help_has_every_command_once() -> None:
    shown = cli.get_help(click.Context(cli))
    assert sorted(re.findall(r"(?m)^  (\w+) {2,}[A-Z]", shown)) == sorted(_COMMANDS)


def test_a_section_that_names_no_option_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="bend"):
        SectionedCommand("bent", params=[click.Option(["--straight"])], sections={"Shape": ("straight", "bend")})


def test_compile_writes_the_artifact_and_the_bill(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "a.helio"
    result = call("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "--degree", 3, "-o", out)
    assert result.code == 0
    assert "INSECURE" in result.out
    assert "evaluation keys" in result.out
    assert f"wrote {out}" in result.err
    assert hg.Artifact.load(out).name == "Net"


def test_compile_is_the_same_for_a_module_and_its_maker(call: Call, tmp_path: Path) -> None:
    found = []
    for name in ("made", "net"):
        out = tmp_path / name
        options = ("--calibration", "x.npy", "--insecure", "--degree", 3, "--json", "-o", out)
        found.append(call("compile", f"model.py:{name}", *options).json)
        assert found[-1]["artifact"] == str(out)
    first, second = found
    assert first["fingerprint"] == second["fingerprint"]
    assert (tmp_path / "made").read_bytes() == (tmp_path / "net").read_bytes()
    assert first["security_bits"] is None
    assert first["insecure"] is True
    assert first["compile_s"] > 0


def test_compile_options_reach_the_compiler(call: Call, tmp_path: Path) -> None:
    common = ("compile", "model.py:net", "--input-range", -2, 2, "--example-shape", "8", "--insecure", "--json")
    plain = call(*common, "--degree", 3, "-o", tmp_path / "a").json
    steep = call(*common, "--degree", 3, "--degree-of", "act=7", "-o", tmp_path / "b").json
    fine = call(*common, "--target-error", 0.02, "--margin", 0.5, "--spread", 2, "-o", tmp_path / "c").json
    assert plain["ranges"][0]["degree"] == 3
    assert steep["ranges"][0]["degree"] == 7
    assert fine["ranges"][0]["max_error"] <= 0.02
    assert (fine["options"]["margin"], fine["options"]["spread"]) == (0.5, 2.0)
    few = call(*common, "--degree", 3, "--key-bytes", plain["evaluation_key_bytes"] - 1, "-o", tmp_path / "d").json
    assert few["evaluation_key_bytes"] < plain["evaluation_key_bytes"]
    several = call(*common, "--degree", 3, "--batch", "max", "-o", tmp_path / "g").json
    assert several["batch"] > 1
    assert "a power of two" in call(*common, "--batch", "several").err
    deep = call(*common, "--degree", 3, "--no-bootstrap", "-o", tmp_path / "h").json
    assert deep["bootstraps"] == 0
    precise = call(*common, "--degree", 3, "--precision-bits", 5, "-o", tmp_path / "e").json
    assert precise["scale_bits"] <= plain["scale_bits"]
    fixed = ("--log-ring", 12, "--scale-bits", 45, "--method", "interpolation")
    found = call(*common, "--degree", 7, *fixed, "-o", tmp_path / "i").json
    assert (found["ring_dim"], found["scale_bits"]) == (4096, 45)
    assert found["ranges"][0]["method"] == found["options"]["method"] == "interpolation"
    call(*common, "--degree", 3, "--dump-ir", tmp_path / "ir", "-o", tmp_path / "f")
    assert len(list((tmp_path / "ir").glob("*.ir"))) >= 8


def test_compile_overwrites_nothing_without_force(call: Call, tmp_path: Path) -> None:
    """And says so before it compiles."""
    out, public, folder = tmp_path / "a.helio", tmp_path / "a.public", tmp_path / "ir"
    common = ("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "--quiet", "--degree", 3)
    whole = ("-o", out, "--public", public, "--dump-ir", folder)
    assert call(*common, *whole).code == 0
    before = out.read_bytes()
    for given, words in (
        (("-o", out), f"{out} already exists"),
        (("-o", tmp_path / "b", "--public", public), f"{public} already exists"),
        (("-o", tmp_path / "b", "--dump-ir", folder), f"the folder {folder} is not empty"),
    ):
        refused = call(*common[:-1], 5, *given)
        assert (refused.code, words in refused.err, "--force" in refused.err) == (2, True, True)
    # Before the model is loaded, which may take long.
    early = call("compile", "nothing.py:net", "-o", out)
    assert (early.code, f"{out} already exists" in early.err) == (2, True)
    assert not (tmp_path / "b").exists()
    assert out.read_bytes() == before
    assert call(*common[:-1], 5, *whole, "--force").code == 0
    assert out.read_bytes() != before


def test_compile_takes_degrees_in_program_order_a_name_and_prices(call: Call, tmp_path: Path) -> None:
    common = ("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "--json")
    found = call(*common, "--degrees", "7", "--name", "mine", "--costs", "built-in", "-o", tmp_path / "a").json
    assert (found["ranges"][0]["degree"], found["name"]) == (7, "mine")
    prices = replace(BUILT_IN, machine="another machine")
    save_costs(prices, tmp_path / "costs.json")
    found = call(*common, "--degrees", "7", "--costs", tmp_path / "costs.json", "-o", tmp_path / "b").json
    assert found["costs"] == "another machine"
    for given, words in (
        (("--degrees", "7,3"), "2 degrees are given for 1 activation"),
        (("--degrees", "7,x"), "is not a list of degrees"),
        (("--degrees", "7", "--degree-of", "act=3"), "--degree-of and --degrees are both given"),
        (("--costs", tmp_path / "none.json"), "none.json cannot be read"),
    ):
        refused = call(*common, *given, "-o", tmp_path / "c")
        assert (refused.code, words in refused.err) == (2, True), refused.err


def test_an_input_may_stay_plain(call: Call, tmp_path: Path) -> None:
    given = ("--calibration", "two.npz", "--insecure", "--quiet", "--plain", "right")
    assert call("compile", "model.py:two", *given, "-o", tmp_path / "a").code == 0
    made = hg.Artifact.load(tmp_path / "a")
    assert (made.plain_inputs, [spec.name for spec in made.public().inputs]) == (("right",), ["left"])
    assert made.report.values["ciphertext_products"] == 0


def test_a_pass_that_is_misspelt_is_found_before_anything_is_compiled(call: Call, tmp_path: Path) -> None:
    common = ("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "--degree", 3)
    refused = call(*common, "--explain", "packk", "-o", tmp_path / "a")
    assert (refused.code, "did you mean pack?" in refused.err) == (2, True)
    idle = call(*common, "--explain", "fit-slots", "-o", tmp_path / "a")
    assert (idle.code, "the pass fit-slots did not run on this program" in idle.err) == (2, True)
    assert not (tmp_path / "a").exists()


# What the package says, and how the command line says it.
WORDS = [
    (("--batch", 3), "error: --batch 3 cannot be used\n"),
    (("--degree-of", "act=0"), "error: --degree-of act=0 cannot be used\n"),
    (("--degree-of", "'a=b'=3"), "error: --degree-of: no activation is called \"'a=b'\"\n"),
    (("--degree-of", "ac=3"), "try: the activations are called 'act'\n"),
    (("--error-of", "act1=0.1"), "error: --error-of: no ReLU of an encrypted value is called 'act1'\n"),
    (("--degree", 3, "--target-error", 0.1), "error: --target-error 0.1 cannot be used\n"),
    (("--key-bytes", 10), "error: --key-bytes 10 holds 0 rotation keys"),
    (("--input-range", 0, 0.1), "outside of --input-range (0, 0.1)"),
]


@pytest.mark.parametrize(("given", "words"), WORDS)
def test_errors_speak_of_flags(call: Call, tmp_path: Path, given: tuple[object, ...], words: str) -> None:
    common = ("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "-o", tmp_path / "a")
    refused = call(*common, *given)
    assert refused.code == 2
    assert words in refused.err
    for name in ("Options", "degrees=", "input_range", "hg."):
        assert name not in refused.err


def test_what_an_activation_lacks_is_said_in_flags(call: Call, tmp_path: Path) -> None:
    refused = call("compile", "model.py:net", "--example-shape", "8", "--insecure", "-o", tmp_path / "a")
    assert "  try: give --calibration FILE or --input-range LOW HIGH" in refused.err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (hg.SecurityError("a 'security_bits=None' layer", hint=said("{allow_insecure=True (here)|--insecure}")),
         "a 'security_bits=None' layer\n  try: --insecure"),
        (hg.ProgramError("no key", hint=said("compile with a lower {key_bytes}, or pass {check_memory=False}")),
         "no key\n  try: compile with a lower --key-bytes, or pass --no-memory-check"),
        (hg.PlanningError(said("it bootstraps, and {bootstrap=False} was asked for"), where="Options.bootstrap"),
         "--bootstrap: it bootstraps, and --no-bootstrap was asked for"),
        (hg.ProgramError("the degree is low, and batch and margin=3 are words", where="net.py:3"),
         "net.py:3: the degree is low, and batch and margin=3 are words"),
        (hg.ProgramError(said(Argument("errors", "{'a': 2.0, 'b': 1e-3}"), " cannot be used"), where="Options.errors"),
         "--error-of a=2.0,b=1e-3 cannot be used"),
    ],
)  # fmt: skip
def test_only_arguments_are_translated(error: hg.HeliographError, words: str) -> None:
    assert in_flags(error) == words


def test_compile_with_two_inputs(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "two.helio"
    result = call("compile", "model.py:two", "--calibration", "two.npz", "--insecure", "--quiet", "-o", out)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert [spec.name for spec in hg.Artifact.load(out).public().inputs] == ["left", "right"]
    arrays = np.load("two.npz")
    values = call("run", "--insecure", out, "--input", "two.npz", "--sample", 2, "--json").json
    expected = arrays["left"][2] * arrays["right"][2] + arrays["left"][2]
    assert np.abs(np.array(next(iter(values["outputs"].values()))) - expected).max() < 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model.py --example-shape 8", "does not say which module"),
        ("model.onnx --example-shape 8", "ONNX files are not read"),
        ("nothing.py:net --example-shape 8", "nothing.py cannot be read"),
        ("model.py:nothing --example-shape 8", "defines no 'nothing'"),
        ("model.py:number --example-shape 8", "is int, not a torch.nn.Module"),
        ("model.py:failing --example-shape 8", "KeyError: 'nothing'"),
        ("model.py:net", "the shape of the input is unknown"),
        ("model.py:net --example-shape 8x8", "is not a shape"),
        ("model.py:net --example-shape 8 --degree-of act", "is not LAYER=DEGREE"),
        ("model.py:net --example-shape 8 --input-range -1 1 --degree 0 --insecure", "a whole number from 1 to 511"),
        ("model.py:net --calibration nothing.npy", "nothing.npy cannot be read"),
        ("model.py:net --calibration model.py", "is not a .npy or .npz file"),
        ("model.py:net --calibration two.npz", "needed are 'x'"),
        ("model.py:net --example-shape 9 --input-range -1 1", "8"),
        ("model.py:net --example-shape 8 --frobnicate", "No such option"),
        ("model.py:net --example-shape 8 --degree three", "is not a valid integer"),
    ],
)
def test_compile_refuses_in_words(call: Call, tmp_path: Path, arguments: str, words: str) -> None:
    result = call("compile", *arguments.split(), "-o", tmp_path / "out")
    assert result.code == 2
    assert words in result.err
    assert result.out == ""
    assert not (tmp_path / "out").exists()


def test_a_name_that_a_file_lacks_is_answered_with_its_own_names(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import math\nfrom pathlib import Path\n\ndef network():\n    ...\n\ndef data():\n    ...\n")
    near = call("compile", f"{file}:networ", "--example-shape", 8)
    assert "try: did you mean 'network'?" in near.err
    far = call("compile", f"{file}:model", "--example-shape", 8)
    assert "try: it has network, data\n" in far.err


def test_errors_in_the_users_file_name_its_line(call: Call, folder: Path) -> None:
    result = call("compile", "model.py:failing", "--example-shape", 8)
    line = 1 + (folder / "model.py").read_text().split("\n").index('    return {}["nothing"]')
    assert f"model.py:{line}" in result.err


NAMES = ("heliograph", "types", "random", "copy", "torch", "numpy", "json", "click", "my-net.v2", "net")


def test_a_users_file_takes_no_other_modules_place(folder: Path, tmp_path: Path) -> None:
    """Files that are called like modules; each imports one that lies beside it."""
    (tmp_path / "beside_it.py").write_text((folder / "model.py").read_text())
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("import beside_it\n\nnet = beside_it.net\n")
    before, path = dict(sys.modules), list(sys.path)
    try:
        for name in NAMES:
            assert load_object(f"{tmp_path / name}.py:net", called=lambda value: False).__module__ == "beside_it"
            assert sys.path == [*path, str(tmp_path)]
        others = {name for name in sys.modules if not name.startswith("heliograph_user_")}
        assert all(sys.modules[name] is module for name, module in before.items() if name in others)
        assert others - before.keys() == {"beside_it"}
    finally:
        sys.path[:] = path
        sys.modules.update(before)
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]


def test_compile_warns_where_the_class_of_a_sample_changes(call: Call, tmp_path: Path) -> None:
    common = ("model.py:close", "--calibration", "wide.npy", "--insecure", "--force", "-o", tmp_path / "a")
    result = call("compile", *common, "--degree", 3)
    found = hg.Artifact.load(tmp_path / "a").report.values["class_agreement"]
    assert 0 < found["agree"] < found["samples"] == 32
    words = f"agrees with the model on {found['agree']} of 32 held-out samples"
    assert f"  class            {words}\n" in result.out
    assert f"warning: the class {words}; higher degrees" in result.err
    assert call("compile", *common, "--degree", 3, "--quiet").err == ""
    assert "warning" not in call("compile", *common, "--degree", 127).err


def test_compile_takes_the_gap_of_a_class(call: Call, tmp_path: Path) -> None:
    named = ("--force", "-o", tmp_path / "a")
    common = ("compile", "model.py:close", "--calibration", "wide.npy", "--insecure", "--json", *named)
    declared = call(*common, "--top1", "--gap", 0.02).json["ranges"][-1]
    assert (declared["gap"], declared["gap_source"]) == (0.02, "declared")
    assert call(*common, "--top1").json["ranges"][-1]["gap_source"] == "observed"
    for wrong in (("--gap", 0.02), ("--top1", "--gap", 0), ("--top1", "--gap", "nan")):
        refused = call(*common, *wrong)
        assert refused.code == 2
        assert refused.err.startswith("error: --gap")


def test_layers_without_a_line_of_the_user_are_named_by_their_class(call: Call, tmp_path: Path) -> None:
    """A Sequential that the command compiles has no line in the user's file: not one of ours stands in for it."""
    common = ("--input-range", -1, 1, "--example-shape", "8", "--insecure", "--degree", 3, "-o", tmp_path / "a")
    result = call("compile", "model.py:layers", *common, "--full")
    assert result.code == 0, result.err
    for words in ("0 (nn.Linear(8, 6)): linear map", "1 (nn.ReLU()): [", "2 (nn.Linear(6, 3)): linear map"):
        assert words in result.out
    for path in (str(PACKAGE), str(PACKAGE.parent), "site-packages", "click"):
        assert path not in result.out
        assert path.encode() not in (tmp_path / "a").read_bytes()
    refused = call("compile", "model.py:refused", *common, "--force")
    assert refused.err.startswith("error: nn.FractionalMaxPool2d() (1): ")
    shape = call("compile", "model.py:layers", "--input-range", -1, 1, "--example-shape", "7", "--insecure")
    assert shape.err.startswith(
        "error: the model cannot be run on the example (--example-shape, or the first sample of --calibration)\n"
    )


def test_inspect(call: Call, folder: Path) -> None:
    artifact = hg.Artifact.load(folder / "m.helio")
    assert call("inspect", "m.helio", "--full").out.rstrip("\n") == artifact.report.full()
    assert call("inspect", "m.helio", "--stage", "executable").out == str(artifact.program)
    for stage in ("tensor", "polynomial", "packed", "managed"):
        assert call("inspect", "m.helio", "--stage", stage).out == artifact.stages[stage]
    depth = call("inspect", "m.helio", "--depth").out
    assert "critical path" in depth
    assert "model.py:" in depth


def test_inspect_json(call: Call) -> None:
    values = call("inspect", "m.helio", "--json").json
    for name in ("security_bits", "ring_dim", "log_pq", "depth", "levels", "rotation_keys", "evaluation_key_bytes"):
        assert name in values
    names = {node["name"] for node in values["nodes"]}
    assert set(values["critical_path"]) <= names
    for node in values["nodes"]:
        assert {"name", "op", "inputs", "stage", "depth", "level", "scale_bits", "location"} <= set(node)
        assert set(node["inputs"]) <= names
    assert any(node["location"].startswith("model.py:") or "/model.py:" in node["location"] for node in values["nodes"])


def test_inspect_of_the_public_part(call: Call) -> None:
    result = call("inspect", "p.helio")
    assert "the public part" in result.out
    assert "INSECURE" in result.out
    starts = {len(line) - len(line[2:].lstrip().partition("  ")[2].lstrip()) for line in result.out.splitlines()[1:]}
    assert len(starts) == 1, "the second column begins where it begins"
    assert call("inspect", "p.helio", "--json").json["inputs"] == [{"name": "x", "shape": [8]}]
    refused = call("inspect", "p.helio", "--depth")
    assert refused.code == 2
    assert "holds no program" in refused.err


@pytest.mark.parametrize("file", ["nothing.helio", "x.npy", "model.py"])
def test_inspect_refuses_other_files(call: Call, file: str) -> None:
    result = call("inspect", file)
    assert result.code == 2
    assert file in result.err


def test_faults_of_ours_have_no_traceback_either(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import heliograph.artifact.container

    def broken(path: object) -> str:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(heliograph.artifact.container, "file_kind", broken)
    result = call("inspect", "m.helio")
    assert result.code == 70
    assert "ZeroDivisionError: no such thing" in result.err
    assert "fault of Heliograph" in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (hg.InternalError("no such thing"), 70),
        (hg.VerifyError("no such thing"), 70),
        (hg.HeliographError("no such thing"), 2),
        (hg.ProgramError("no such thing"), 2),
        (hg.WireError("no such thing"), 2),
        (hg.PlanningError("no such thing"), 2),
        (MemoryError("no such thing"), 2),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError("no such thing"), 70),
        (AssertionError("no such thing"), 70),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    import heliograph.artifact.container

    def broken(path: object) -> str:
        raise error

    monkeypatch.setattr(heliograph.artifact.container, "file_kind", broken)
    result = call("inspect", "m.helio")
    assert result.code == code
    assert result.err


def test_doctor(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    values = call("doctor", "--json").json
    assert values["ok"] is True
    found = {check["name"]: check["status"] for check in values["checks"]}
    assert set(found) >= {"python", "openfhe", "torch", "cores", "memory", "OMP_WAIT_POLICY"}
    assert found["openfhe"] == "ok"
    monkeypatch.setattr(doctor, "GIVEN_POLICY", None)
    assert "not set; Heliograph makes it passive" in call("doctor").out
    # The user's own setting, not the one that Heliograph made.
    monkeypatch.setattr(doctor, "GIVEN_POLICY", "active")
    shown = call("doctor")
    assert "waiting threads spin" in shown.out
    monkeypatch.setattr(doctor, "_OLDEST", (3, 99))
    shown = call("doctor")
    assert shown.code == 1
    assert "use CPython 3.99 or newer" in shown.out


def test_doctor_needs_no_openfhe(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingPackageError("OpenFHE is not installed or does not load", why="no module named openfhe")

    monkeypatch.setattr("heliograph.runtime.openfhe.context.library", missing)
    make_context.cache_clear()
    check = doctor._openfhe()
    assert (check.status, check.advice) == ("ok", "")
    assert "not needed" in check.detail


def test_a_quiet_command_says_nothing(call: Call) -> None:
    begun = time.perf_counter()
    result = call("inspect", "m.helio", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert time.perf_counter() - begun < 10


def test_a_forged_bill_is_refused_and_no_file_obeys_the_terminal(call: Call, folder: Path, tmp_path: Path) -> None:
    good = unpack((folder / "m.helio").read_bytes(), "artifact", VERSION, 1 << 30)
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    fields = {**good.fields, "report": {**good.fields["report"], "security_bits": 128, "ring_dim": 16384}}
    (tmp_path / "lie.helio").write_bytes(pack(Container(good.kind, good.version, fields, blobs)))
    result = call("inspect", tmp_path / "lie.helio")
    assert result.code == 2
    assert "which follows from its program" in result.err
    assert "128 bits" not in result.out
    evil = "\x1b[2J\x1b]0;owned\x07"
    (tmp_path / "kind.helio").write_bytes(pack(Container(evil, 4, {})))
    blobs["text/stage/managed"] = evil.encode() + blobs["text/stage/managed"]
    (tmp_path / "stage.helio").write_bytes(pack(Container(good.kind, good.version, good.fields, blobs)))
    for file in ("kind.helio", "stage.helio"):
        result = call("inspect", tmp_path / file)
        assert result.code == 2
        assert "\x1b" not in result.err + result.out


def test_compile_takes_an_estimator_of_scikit_learn(call: Call, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (folder / "tabular.py").write_text(
        "import numpy as np\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import StandardScaler\n"
        "x = np.load('x.npy')\n"
        "from sklearn.linear_model import SGDClassifier\n"
        "model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, x[:, 0] > 0)\n"
        "clipped = SGDClassifier(loss='modified_huber').fit(x, x[:, 0] > 0)\n"
    )
    common = ("compile", "tabular.py:model", "--insecure", "--json")
    found = call(*common, "--calibration", "x.npy", "--name", "tabular", "-o", tmp_path / "a").json
    assert (found["name"], found["depth"], found["class_agreement"]["agree"]) == ("tabular", 1, 20)
    assert "give --calibration FILE" in call(*common, "-o", tmp_path / "b").err
    refused = call(*common, "--calibration", "x.npy", "--example-shape", 8, "-o", tmp_path / "b")
    assert "--example-shape and --plain are for PyTorch modules" in refused.err
    # Its probabilities are not the softmax of its scores.
    clipped = ("compile", "tabular.py:clipped", "--calibration", "x.npy", "--insecure", "--json", "-o", tmp_path / "b")
    assert "try: take the scores: give --scores; the class has the largest" in call(*clipped).err
    assert call(*clipped, "--scores").json["name"] == "SGDClassifier"
    refused = call("compile", "model.py:net", "--example-shape", 8, "--scores", "-o", tmp_path / "c")
    assert "model.py:net: --scores is for classifiers of scikit-learn" in refused.err


def test_compile_takes_files_of_tree_models(call: Call, folder: Path, tmp_path: Path) -> None:
    models = Path(__file__).parents[1] / "frontends/trees_models"
    for name in ("xgboost-binary.json", "xgboost-binary-ubj.ubj", "lightgbm-sets.txt"):
        with np.load((models / name).with_suffix(".answers.npz")) as answers:
            np.save(tmp_path / "samples.npy", answers["samples"])
        common = ("compile", models / name, "--calibration", tmp_path / "samples.npy", "--insecure", "--json")
        found = call(*common, "--binned", "--name", "trees", "-o", tmp_path / f"{name}.helio").json
        # Comparisons come from clients: a map, the polynomial of the paths, a map.
        assert (found["name"], found["depth"] <= 5) == ("trees", True)
        assert hg.Artifact.load(tmp_path / f"{name}.helio").public().inputs[0].encoding is not None
    # Categories are not compared under encryption, and samples with NaN are not sent.
    assert "NaN" in call(*common, "-o", tmp_path / "b").err
    np.save(tmp_path / "samples.npy", np.zeros((4, 5)) + np.arange(4)[:, np.newaxis])
    assert "let clients compare (--binned)" in call(*common, "-o", tmp_path / "b").err
    refused = call("compile", "model.py:net", "--example-shape", 8, "--binned", "-o", tmp_path / "b")
    assert "model.py:net: --binned is for tree models" in refused.err


@pytest.mark.parametrize("name", ["types", "random", "heliograph", "copy"])
def test_a_file_of_the_users_may_have_the_name_of_a_module(folder: Path, tmp_path: Path, name: str) -> None:
    """In a process of its own, with nothing imported before."""
    file = tmp_path / f"{name}.py"
    file.write_text((folder / "model.py").read_text())
    command = [*(sys.executable, "-m", "heliograph.cli.main", "compile", f"{file}:net", "--insecure", "--degree", "3")]
    command += ["--calibration", str(folder / "x.npy"), "--output", str(tmp_path / "named.helio")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_comparison_with_the_model_can_be_left_out(call: Call) -> None:
    compile_ = ("compile", "model.py:net", "--calibration", "x.npy", "--insecure", "--degree", "3", "--force")
    assert "the traced program agrees with it on 20 samples" in call(*compile_, "--full").out.replace(
        "\n                       ", " "
    )
    assert "was not compared with it" in call(*compile_, "--no-check", "--full").out
