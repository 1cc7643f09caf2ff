"""What programs of the language mean: compared with numpy, op by op; files of parameters; layers and places."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.dsl.parse import parse
from heliograph.errors import LanguageError
from heliograph.interpret import interpret, interpret_many
from heliograph.ir import Program, SlotsType, Stage, TensorType
from heliograph.ir.ops.table import OPS
from heliograph.ir.text import parse_program, programs_equal
from heliograph.ir.verify import verify

HEAD = "program p\ninput x: secret tensor[2, 3] in [-1, 1]\n"
X = np.array([[0.5, -1.0, 0.25], [1.0, 0.0, -0.75]])
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(body: str, x: object = X, **parameters: object) -> object:
    program = verify(parse(HEAD + body, parameters=parameters))
    assert programs_equal(parse_program(str(program), program.constants), program)
    return interpret(program, x)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x + 1", X + 1),
        ("1 - x", 1 - X),
        ("-x * 2", -X * 2),
        ("x / 4", X / 4),
        ("x / [1, 2, 4]", X / [1, 2, 4]),
        ("x**3", X**3),
        ("-x**2", -(X**2)),
        ("2**-1 * x", X / 2),
        ("2**3**2 * x", X * 512),
        ("x - x * x - x", -X * X),
        ("x @ [1, 2, 3]", X @ [1, 2, 3]),
        ("[1, 2] @ x", np.array([1, 2]) @ X),
        ("x @ [[1], [2], [3]] @ [[1, 2]]", X @ [[1], [2], [3]] @ [[1, 2]]),
        ("(7 // 2 + 7 % 4 - 1.5) * x", 4.5 * X),
        ("x[1]", X[1]),
        ("x[-1, -2:]", X[-1, -2:]),
        ("x[:, ::2]", X[:, ::2]),
        ("x[0][1]", X[0][1]),
        ("x[0:1, 2]", X[0:1, 2]),
        ("[10, 20, 30][1] * x", 20 * X),
        ("[[1, 2, 3], [4, 5, 6]][1] * x", np.array([4, 5, 6]) * X),
        ("ones([3]) * x + zeros([2, 1])", X),
        ("sum(x)", X.sum()),
        ("mean(x, axes=1, keepdims=true)", X.mean(1, keepdims=True)),
        ("reshape(x, [-1])", X.reshape(-1)),
        ("flatten(x)", X.reshape(-1)),
        ("permute(x, axes=[1, 0])", X.T),
        ("permute(x, [1, 0])", X.T),
        ("concat(x, x, axis=1)", np.concatenate([X, X], 1)),
        ("concat([x, x * 2], axis=0)", np.concatenate([X, X * 2], 0)),
        ("pad(x, before=[0, 1], after=[1, 0])", np.pad(X, [(0, 1), (1, 0)])),
        ("broadcast(x, shape=[2, 2, 3])", np.broadcast_to(X, (2, 2, 3))),
        ("relu(x)", np.maximum(X, 0)),
        ("leaky_relu(x, negative_slope=0.5)", np.where(X > 0, X, X / 2)),
        ("linear(x, [[1, 2, 3]], [4])", X @ [[1], [2], [3]] + 4),
        ("power(x, exponent=2)", X**2),
        ("x > 0", X > 0),
        ("x < 0.25", X < 0.25),
        ("x >= 0.25", X >= 0.25),
        ("x <= [0.5, -1, 0]", X <= [0.5, -1, 0]),
        ("0 > x", X < 0),
        ("x + 1 > x * 2 - 0.5", X + 1 > X * 2 - 0.5),
        ("x<-0.5", X < -0.5),
        ("(x > 0) < 0.5", X <= 0),
        ("(x > -1) * (x < 0.5)", (X > -1) & (X < 0.5)),
        ("(2 > 1) * x + (1 >= 2) + [1, 2, 3] <= [1, 5, 2]", X + [1, 2, 3] <= [1, 5, 2]),
        ("x * ([1, 2, 3] > 1.5)", X * [0, 1, 1]),
        ("where(x > 0, x, -x)", np.abs(X)),
        ("where(x > 0, 1, [2, 3, 4])", np.where(X > 0, 1, [2, 3, 4])),
        ("maximum(x, 0) + minimum(0.25, x)", np.maximum(X, 0) + np.minimum(0.25, X)),
        ("max(x, axis=0)", X.max(0)),
        ("max(x)", X.max(-1)),
        ("min(x, 0, true)", X.min(0, keepdims=True)),
        ("argmax(x)", [[1, 0, 0], [1, 0, 0]]),
        ("argmax(x, axis=0, index=true)", X.argmax(0)),
        ("softmax(x)", np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
        ("softmax(x, axis=0)", np.exp(X) / np.exp(X).sum(0)),
        ("1 / (x + 2)", 1 / (X + 2)),
        ("3 / (x + 2)", 3 / (X + 2)),
        ("x / (x + 2)", X / (X + 2)),
        ("[1, 2, 3] / (x + 2)", [1, 2, 3] / (X + 2)),
        ("reciprocal(x + 2) + sqrt(x + 2) + rsqrt(x + 2)", 1 / (X + 2) + (X + 2) ** 0.5 + (X + 2) ** -0.5),
        ("sign(x) + abs(x) + exp(x)", np.sign(X) + np.abs(X) + np.exp(X)),
        ("clamp(x, min=-0.5, max=0.5) + clamp(x, 0)", np.clip(X, -0.5, 0.5) + np.maximum(X, 0)),
        ("relu6(8 * x)", np.clip(8 * X, 0, 6)),
        (
            "layer_norm(x, weight=[1, 2, 3], eps=0.5)",
            (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 0.5) * [1, 2, 3],
        ),
        ("layer_norm(x, rank=2)", (X - X.mean()) / np.sqrt(X.var() + 1e-5)),
        ("max_pool(reshape(x, [1, 2, 3]), kernel=2)", X[:, :2].max().reshape(1, 1, 1)),
        ("max_pool(reshape(x, [1, 2, 3]), kernel=[2, 1], stride=1)", X.max(0).reshape(1, 1, 3)),
        ("shape(x)[1] * x + len(x)", 3 * X + 2),
        ("constant(value=[1, 2, 3]) * x", np.array([1, 2, 3]) * X),
        ("poly(x, coefficients=[0, 1], low=-2, high=2)", X / 2),
        ("affine(flatten(x), matrices=[[[1, 0, 0, 0, 0, 2]]], bias=[3], shape=[1])", [X[0, 0] + 2 * X[1, 2] + 3]),
    ],
)
def test_expressions(expression: str, expected: object) -> None:
    np.testing.assert_allclose(run(f"output y = {expression}\n"), expected, atol=1e-12)


def test_windows_and_norms() -> None:
    image = np.arange(32.0).reshape(2, 4, 4) / 10
    program = parse(
        "program p\ninput x: secret tensor[2, 4, 4] in [0, 4]\nparam w\n"
        "c = conv(x, weight=w, stride=2, padding=1)\nn = batch_norm(c, mean=[1, 2, 3], variance=[1, 4, 9], eps=0.5)\n"
        "output n, a = adaptive_avg_pool(x, output_size=1), p = avg_pool(x, kernel=[2, 2])\n",
        parameters={"w": np.ones((3, 2, 3, 3), dtype=np.float32)},
    )
    normed, averaged, pooled = interpret(program, image)
    padded = np.pad(image, [(0, 0), (1, 1), (1, 1)])
    sums = np.array([[padded[:, i : i + 3, j : j + 3].sum() for j in (0, 2)] for i in (0, 2)])
    expected = [(sums - mean) / np.sqrt(var + 0.5) for mean, var in ((1, 1), (2, 4), (3, 9))]
    np.testing.assert_allclose(normed, expected, atol=1e-12)
    np.testing.assert_allclose(averaged[:, 0, 0], image.mean((1, 2)))
    np.testing.assert_allclose(pooled[0, 0, 0], image[0, :2, :2].mean())
    conv = next(node for node in program.nodes if node.op == "conv")
    assert conv.attrs["stride"] == (2, 2)
    # What a file stores in 32 bits stays in 32 bits.
    assert program.array("w").dtype == np.float32


def test_plain_inputs_are_run_time_values() -> None:
    program = parse("program p\ninput x: secret tensor[2]\ninput w: plain tensor[2] in [0, 3]\noutput y = x * w\n")
    assert [node.attrs.get("secret", True) for node in program.inputs] == [True, False]
    assert program.inputs[1].type == TensorType((2,), secret=False)
    assert not program.constants
    np.testing.assert_allclose(interpret(program, [1, 2], [3, 4]), [3, 8])
    np.testing.assert_allclose(interpret(program, [1, 2], [0, 1]), [0, 2])


def test_scalars_keep_no_axis() -> None:
    program = parse("program p\ninput x: secret tensor[] in [0, 1]\noutput y = 2.5 * x\n")
    assert program.outputs[0].type == TensorType(())
    assert interpret(program, 2.0) == 5.0


SLOT_X = np.array([1.0, -2.0, 3.0, 0.5, 0.25])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x + 1", lambda x: x + 1),
        ("1 - x", lambda x: 1 - x),
        ("x - 1.5", lambda x: x - 1.5),
        ("[1, 2, 3, 4, 5] - x", lambda x: np.arange(1, 6) - x),
        ("x - [1, 2, 3, 4, 5]", lambda x: x - np.arange(1, 6)),
        ("x * 3", lambda x: 3 * x),
        ("x * 0.5 / 2", lambda x: x / 4),
        ("x * [1, 0, 0, 0, 2]", lambda x: x * [1, 0, 0, 0, 2]),
        ("x**7", lambda x: x**7),
        ("multiply(x, x) + add(x, x) - sub(x, neg(x))", lambda x: x * x),
        ("rotate(x, 1)", lambda x: np.array([*x[1:], 0.0])),
        ("rotate(x, amount=-3)", lambda x: np.array([0, 0, 0, *x[:2]])),
        ("conjugate(x)", lambda x: x),
        ("rescale(x * x)", lambda x: x * x),
        ("lincomb(x, x * x, weights=[2, 3], constant=1)", lambda x: 2 * x + 3 * x * x + 1),
        ("poly(x, coefficients=[1, 0, 1], low=-4, high=4)", lambda x: 2 * (x / 4) ** 2),
        ("mul_plain(x, value=[1, 2, 1, 2, 1])", lambda x: x * [1, 2, 1, 2, 1]),
        ("x * concat(ones([2]), zeros([3]), axis=0)", lambda x: x * [1, 1, 0, 0, 0]),
    ],
)
def test_slots(expression: str, expected: object) -> None:
    program = verify(parse(f"program p\ninput x: secret slots[5] in [-4, 4]\noutput y = {expression}\n"))
    assert program.stage is Stage.PACKED
    assert program.inputs[0].type == SlotsType(8)
    assert programs_equal(parse_program(str(program), program.constants), program)
    np.testing.assert_allclose(interpret(program, SLOT_X), expected(SLOT_X), atol=1e-12)  # type: ignore[operator]


def test_slot_powers_take_the_fewest_levels() -> None:
    for exponent in (2, 3, 7, 8, 15, 33):
        program = parse(f"program p\ninput x: secret slots[4] in [-1, 1]\noutput y = x**{exponent}\n")
        depth: dict[object, int] = {}
        for node in program.nodes:
            depth[node] = max((depth[operand] for operand in node.inputs), default=0) + (node.op == "mul_ct")
        assert depth[program.outputs[0]] == (exponent - 1).bit_length()


def layers(program: Program) -> list[str]:
    return [node.loc.layer for node in program.nodes if node.op in ("relu", "sigmoid")]


def test_layers_are_readable_and_unique() -> None:
    program = parse(
        HEAD + "fn block(a) {\n  z = relu(a)\n  return sigmoid(z)\n}\n"
        "h = block(x)\nh = block(block(h))\nfor i in 0..2 {\n  h = relu(h)\n  g = block(h) + relu(h)\n}\n"
        "output h, relu(g), out = relu(g)\n"
    )
    found = layers(program)
    assert len(set(found)) == len(found)
    assert {"h.z", "h", "h#2.z", "h#2", "h[0]", "h[1]", "g[1].z", "g[1]", "g[1].relu", "out"} <= set(found)
    assert layers(parse(str(HEAD) + "h = relu(x)\noutput h\n")) == ["h"]


def test_every_node_knows_its_place() -> None:
    program = parse(HEAD + "fn f(a) {\n  return relu(a)\n}\nh = f(x) * 2\noutput y = h + 1\n")
    places = {(node.op, node.loc.file, node.loc.line, node.loc.column) for node in program.nodes}
    assert ("input", "<text>", 2, 7) in places
    assert ("relu", "<text>", 4, 10) in places
    assert ("mul", "<text>", 6, 5) in places
    assert ("add", "<text>", 7, 12) in places
    assert all(node.loc.layer for node in program.nodes)


def test_annotations_reach_the_activations() -> None:
    program = parse(
        HEAD + "fn f(a) {\n  z = relu(a) with degree = 3\n  return sigmoid(z)\n}\n"
        'y = f(x) with degree = 9, range = [-2, 2], method = "minimax"\nz = tanh(y, degree=5) with degree = 7\n'
        "output y, z\n"
    )
    attrs = {node.op: dict(node.attrs) for node in program.nodes}
    assert attrs["relu"] == {"degree": 3, "low": -2.0, "high": 2.0, "method": "minimax"}
    assert attrs["sigmoid"] == {"degree": 9, "low": -2.0, "high": 2.0, "method": "minimax"}
    assert attrs["tanh"] == {"degree": 5}


def test_annotations_reach_what_is_approximated() -> None:
    """By operators as by calls; a layer for each, so that options can say it too."""
    program = parse(
        HEAD + "a = where(x > 0, x, -x) with gap = 0.5, bits = 8, range = [-3, 3]\n"
        "b = x / (x + 2) + 1 / (x + 3) with degree = 7, range = [1, 4]\n"
        "c = softmax(x) + layer_norm(x) with low = 0, high = 9\n"
        "d = argmax(x, gap=0.25) + maximum(x, 0) + max(x, keepdims=true) with gap = 0.125, count = 16\n"
        "output a, b, c, d\n"
    )
    tuned = {node.loc.layer: (node.op, dict(node.attrs)) for node in program.nodes if "high" in OPS[node.op].attrs}
    del tuned["x"]
    assert tuned == {
        "a": ("gt", {"gap": 0.5, "bits": 8.0, "low": -3.0, "high": 3.0}),
        "b": ("div", {"degree": 7, "low": 1.0, "high": 4.0}),
        "b.reciprocal": ("reciprocal", {"degree": 7, "low": 1.0, "high": 4.0}),
        "c": ("softmax", {"axis": -1, "low": 0.0, "high": 9.0}),
        "c.layer_norm": ("layer_norm", {"rank": 1, "eps": 1e-5, "low": 0.0, "high": 9.0}),
        "d": ("argmax", {"axis": -1, "gap": 0.25, "count": 16}),
        "d.maximum": ("maximum", {"gap": 0.125}),
        "d.max": ("max", {"axis": -1, "gap": 0.125, "keepdims": True}),
    }


def write_safetensors(path: Path, arrays: dict[str, tuple[str, list[int], bytes]], **extra: object) -> None:
    header: dict[str, object] = dict(extra)
    position, blob = 0, b""
    for name, (kind, shape, raw) in arrays.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, position + len(raw)]}
        position += len(raw)
        blob += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + blob)


def test_parameter_files(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, 0.25])
    np.savez_compressed(tmp_path / "a.npz", w=values, v=values.astype(np.int8))
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "b.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    half = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    write_safetensors(
        tmp_path / "c.safetensors",
        {
            "f32": ("F32", [3], values.astype("<f4").tobytes()),
            "bf16": ("BF16", [3], half),
            "f16": ("F16", [3], values.astype("<f2").tobytes()),
        },
        __metadata__={"format": "pt"},
    )
    path = tmp_path / "p.hg"
    path.write_text(
        HEAD + 'y = x * load("a.npz", "w") + load("a.npz", "v") * 1 + load("sub/b.npy")\n'
        'z = x * load("c.safetensors", "f32") + x * load("c.safetensors", "bf16") + x * load("c.safetensors", "f16")\n'
        "output y, z\n"
    )
    y, z = interpret(parse(str(path)), X)
    np.testing.assert_allclose(y, X * values + np.array([1, -2, 0]) + np.arange(6).reshape(2, 3))
    np.testing.assert_allclose(z, 3 * X * values)


def refuse(folder: Path, call: str, message: str) -> None:
    path = folder / "p.hg"
    path.write_text(HEAD + f"param w = {call}\noutput x\n")
    with pytest.raises(LanguageError, match=message):
        parse(path)


def test_parameter_files_that_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    np.savez(tmp_path / "outside.npz", w=np.ones(2))
    os.symlink(tmp_path / "outside.npz", home / "link.npz")
    os.symlink(tmp_path, home / "dir")
    os.mkfifo(home / "pipe.npz")
    np.savez(home / "objects.npz", w=np.array([{}], dtype=object), t=np.array(["a"]), c=np.array([1j]))
    np.savez(home / "good.npz", weight=np.ones(2), nan=np.array([np.nan]))
    (home / "broken.npz").write_bytes((home / "good.npz").read_bytes()[:-30])
    (home / "noise.npz").write_bytes(b"PK\x03\x04" + bytes(range(200)))
    (home / "huge.npy").write_bytes(
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }".ljust(127)
        + b"\n"
    )
    good = ("F32", [2], np.ones(2, dtype="<f4").tobytes())
    write_safetensors(home / "short.safetensors", {"w": ("F32", [4], bytes(8))})
    write_safetensors(home / "kind.safetensors", {"w": ("Q4", [2], bytes(8))})
    write_safetensors(home / "negative.safetensors", {"w": ("F32", [-2, -1], bytes(8))})
    (home / "long.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    (home / "deep.safetensors").write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)
    write_safetensors(home / "list.safetensors", {"w": good})
    refuse(home, 'load("link.npz", "w")', "a link that leaves the folder")
    refuse(home, 'load("dir/outside.npz", "w")', "a link that leaves the folder")
    refuse(home, 'load("dir/../x.npz", "w")', "leaves the folder")
    refuse(home, 'load("pipe.npz", "w")', "is not a file")
    refuse(home, 'load("objects.npz", "w")', "real numbers are needed")
    refuse(home, 'load("objects.npz", "t")', "dtype <U1")
    refuse(home, 'load("objects.npz", "c")', "real numbers are needed")
    refuse(home, 'load("good.npz", "wieght")', "did you mean 'weight'")
    refuse(home, 'load("good.npz")', "holds several arrays")
    refuse(home, 'load("good.npz", "nan")', "NaN or infinity")
    refuse(home, 'load("goood.npz", "w")', "did you mean 'good.npz'")
    for name in ("broken.npz", "noise.npz", "short.safetensors", "negative.safetensors", "long.safetensors"):
        refuse(home, f'load("{name}", "w")', "is not a sound parameter file")
    refuse(home, 'load("deep.safetensors", "w")', "is not a sound parameter file")
    refuse(home, 'load("huge.npy")', "more than .* bytes")
    refuse(home, 'load("kind.safetensors", "w")', "dtype Q4")
    refuse(home, 'load("list.safetensors", "v")', "has no array 'v'")
    refuse(home, 'load("a\\u0000b.npz", "w")', "not a path")
    refuse(home, 'load("C:\\\\a.npz", "w")', "not a path")


def test_a_compressed_bomb_is_refused_by_its_size(tmp_path: Path) -> None:
    import zipfile

    header = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (100000000,), }".ljust(127) + b"\n"
    )
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("w.npy", "w", force_zip64=True) as member,
    ):
        member.write(header)
        for _ in range(800):
            member.write(bytes(1_000_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 2_000_000
    refuse(tmp_path, 'load("bomb.npz", "w")', "more than 536870912 bytes")


def test_examples() -> None:
    assert interpret(parse(EXAMPLES / "first.hg"), [0.5, -0.25, 1, 0]) == pytest.approx(1 / (1 + np.exp(-1.25)))
    smooth, dot = interpret(parse(EXAMPLES / "filter.hg"), np.arange(8) / 8)
    x = np.arange(8) / 8
    np.testing.assert_allclose(smooth, 0.25 * np.roll(x, 1) + 0.5 * x + 0.25 * np.roll(x, -1))
    np.testing.assert_allclose(dot, np.full(8, x @ [0.5, -1, 0.25, 2, 0, 1, -0.5, 1.5]))
    a, b, w = [0.5, 1, 0, -1], [1, 0.5, 0.25, -0.5], [1, 1, 2, 0]
    distance, similarity = interpret(parse(EXAMPLES / "two_secrets.hg"), a, b, w)
    assert distance == pytest.approx(0.25 + 0.25 + 2 * 0.0625)
    assert similarity == pytest.approx(1.0)


def test_the_network_of_the_examples_knows_its_flowers() -> None:
    program = parse(EXAMPLES / "iris_mlp.hg")
    # One flower of each kind, from the iris data: setosa, versicolor, virginica.
    flowers = [[5.1, 3.5, 1.4, 0.2], [7.0, 3.2, 4.7, 1.4], [6.3, 3.3, 6.0, 2.5]]
    assert [int(np.argmax(interpret(program, flower))) for flower in flowers] == [0, 1, 2]


def test_parsing_loads_neither_torch_nor_openfhe() -> None:
    import subprocess

    code = (
        "import sys, heliograph\nassert 'lark' not in sys.modules\n"
        "from heliograph.dsl.parse import parse\nparse('program p\\ninput x: secret tensor[2]\\noutput y = x * 2')\n"
        "assert not {'torch', 'openfhe'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=EXAMPLES.parent)


def test_one_file_loaded_many_times_is_read_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(2_000_000), **{f"k{i}": np.ones(1) for i in range(500)})
    write_safetensors(tmp_path / "c.safetensors", {f"k{i}": ("F32", [1], bytes(4)) for i in range(5000)})
    loads = 'z = load("a.npz", "w")\n' * 200 + 's = load("c.safetensors", "k7")\n' * 200
    (tmp_path / "p.hg").write_text(HEAD + loads + "output y = x + s\n")
    # 200 copies of 16 MB would be more than a program may load.
    np.testing.assert_allclose(interpret(parse(tmp_path / "p.hg"), X), X)


def test_trees_are_written_in_the_language(tmp_path: Path) -> None:
    """Two trees behind a layer, by hand; and what `write_language` writes of an estimator's."""
    trees = pytest.importorskip("sklearn.tree", reason="scikit-learn is not installed")
    text = """program trees
input x: secret tensor[2] in [0, 1]
param features: tensor[3] = [0, 1, 1]
param thresholds: tensor[3] = [0.5, 0.25, 0.75]
param paths: tensor[5, 3] = [[-1, -1, 0], [-1, 1, 0], [1, 0, 0], [0, 0, -1], [0, 0, 1]]
param offsets: tensor[5] = [2, 1, 0, 1, 0]
param values: tensor[1, 5] = [[1, 2, 4, 8, 16]]
output y = tree_ensemble(1 - x, features=features, thresholds=thresholds, paths=paths, offsets=offsets,
  values=values, gap=0.05)
"""
    program = hg.parse(text)
    cases = {(0.8, 0.9): 9.0, (0.8, 0.5): 10.0, (0.2, 0.1): 20.0, (0.2, 0.9): 12.0}
    artifact = hg.compile(program, hg.Options(security_bits=None))
    for row, wanted in cases.items():
        assert interpret(program, np.array(row)).tolist() == [wanted]
        assert hg.simulate(artifact, np.array(row))[0] == pytest.approx(wanted, abs=0.05)
    random = np.random.default_rng(0)
    samples = random.normal(size=(60, 3))
    tree = trees.DecisionTreeRegressor(max_depth=3, random_state=0).fit(samples, samples[:, 0] * samples[:, 1])
    for binned in (True, False):
        known = hg.from_sklearn(tree, samples, binned=binned)
        read = hg.parse(hg.write_language(known, tmp_path / str(binned)))
        rows = known.calibration
        np.testing.assert_allclose(interpret_many(read, rows)[0], interpret_many(known, rows)[0], atol=1e-12)
