"""Trees on Adult with Concrete ML 1.9 (TFHE), for comparison: compilation, keys, one encrypted row, bytes, agreement.

Concrete ML pins versions of numpy, torch and scikit-learn that are not this project's, so it has an environment of its
own, and the script is run with that one's Python (3.10 was tried; the packages ask for 3.8 to 3.12). It needs no
heliograph there.

    python3.10 -m venv build/concrete-ml && build/concrete-ml/bin/pip install concrete-ml==1.9.0
    HELIOGRAPH_DATA=DIR build/concrete-ml/bin/python benchmarks/concrete_ml.py --models tree-8 xgb-100x6 > rows.jsonl

Each model is measured in a process of its own that is ended when one stage (fit, classes, compile, keys, encrypted)
takes longer than `--minutes`, or when it asks for more than `--memory-gb`; its row then has what was measured before,
and `failed`. A row is a line of JSON on stdout in the form of `benchmarks/records`. Progress goes to stderr.

What a row's values are, where a name does not say it:

* Models are trained and compiled with Concrete ML's defaults: 6 bits for each feature and each leaf (but for the model
  that names others), 128 bits of security, an error of 2^-40 for each bootstrap. They are compiled for the first 1,000
  training rows. `bits` is the widest integer.
* `encrypted_seconds` is that of `predict(fhe="execute")` for one row, in its steps, keys made before: the median of
  three, or the only one where it took a minute. Its parts are `encrypt_seconds`, `run_seconds` (the server's),
  `decrypt_seconds`. Each `..._cpu_seconds` is the time of all cores together, which other work on the machine changes
  less.
* By default the trees of an ensemble are not summed under encryption: the client decrypts `output_shape` integers,
  those of each tree, and sums them. `outputs_right` says whether all are what the integer model gives in the clear.
* `evaluation_key_bytes`, `input_bytes` and `output_bytes` are of the serialised objects, with Concrete ML's default
  compression of keys and inputs (seeds for what is random); `evaluation_key_memory_bytes` is that of the keys without
  it.
* `agreement` is that of classes with the float model of scikit-learn or XGBoost that `fit_benchmark` trains beside it,
  with the same settings on features that are not rounded. `agreement_imported_6` and `_10` are those of this float model
  and its own import (`from_sklearn_model`, calibrated with the 1,000 rows) at 6 bits and at 10, the import's default.
  All in the clear (`fhe="disable"`), on the first `rows` test rows: 2,000, or what a minute allows.

Concrete ML is by Zama, under BSD-3-Clause-Clear: research use is free, commercial use needs a patent licence.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fetch
from harness import code, commit, machine, plain

TRAINED_ON = 20_000
COMPILED_FOR = 1_000
TESTED_ON = 2_000
PACKAGES = ("concrete-ml", "concrete-python", "scikit-learn", "xgboost", "hummingbird-ml", "numpy", "torch")
# Name -> the class of concrete.ml.sklearn and its settings.
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "tree-8": ("DecisionTreeClassifier", {"max_depth": 8}),
    "tree-8-10bits": ("DecisionTreeClassifier", {"max_depth": 8, "n_bits": 10}),
    "xgb-20x6": ("XGBClassifier", {"n_estimators": 20, "max_depth": 6}),
    "xgb-100x6": ("XGBClassifier", {"n_estimators": 100, "max_depth": 6}),
    "forest-100x6": ("RandomForestClassifier", {"n_estimators": 100, "max_depth": 6}),
    "xgb-500x4": ("XGBClassifier", {"n_estimators": 500, "max_depth": 4}),
    "forest-100x10": ("RandomForestClassifier", {"n_estimators": 100, "max_depth": 10}),
}
# What `from_sklearn_model` takes by itself.
IMPORT_BITS = 10
# A minute: the most for one encrypted row that is measured again, and for all classes in the clear.
LONG_S = 60.0


def adult() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training rows and labels, test rows and labels: the 14 features as the numbers that they are stored as."""
    with np.load(fetch.folder() / "adult.npz", allow_pickle=False) as file:
        columns = [name for name in file["columns"] if name != "income"]
        train, test = (np.stack([file[f"{part}_{name}"] for name in columns], 1) for part in ("train", "test"))
        labels, wanted = (file[f"{part}_income"].astype(np.int64) for part in ("train", "test"))
    return (
        train[:TRAINED_ON].astype(np.float64), labels[:TRAINED_ON],
        test[:TESTED_ON].astype(np.float64), wanted[:TESTED_ON],
    )  # fmt: skip


def timed(work: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = work(*given)
    return result, time.perf_counter() - begun


# ------------------------------------------------------------------------------------------- one model, in its process


def tell(stage: str, values: dict[str, Any]) -> None:
    """A stage is done: its values to the process that waits."""
    print(json.dumps({"stage": stage, "values": values}, default=plain), flush=True)


def classes_in_the_clear(
    model: Any, twin: Any, known: np.ndarray, rows: np.ndarray, wanted: np.ndarray
) -> dict[str, Any]:
    """Accuracy, and agreement with the float model, on as many rows as a minute allows."""
    models = {"model": model, "twin": twin}
    for bits in (model.n_bits["op_inputs"], IMPORT_BITS):
        models[f"imported_{bits}"] = type(model).from_sklearn_model(twin, known, n_bits=bits)
    until = time.perf_counter() + LONG_S
    found: dict[str, list[np.ndarray]] = {name: [] for name in models}
    done = 0
    while done < len(rows) and time.perf_counter() < until:
        part = rows[done : done + 100]
        for name, one in models.items():
            found[name].append(one.predict(part))
        done += len(part)
    classes = {name: np.concatenate(parts) for name, parts in found.items()}
    return {
        "rows": done,
        "accuracy": np.mean(classes["model"] == wanted[:done]),
        "accuracy_float": np.mean(classes["twin"] == wanted[:done]),
        "agreement": np.mean(classes["model"] == classes["twin"]),
    } | {
        f"agreement_{name}": np.mean(given == classes["twin"])
        for name, given in classes.items()
        if name.startswith("imported")
    }


def compiled(circuit: Any) -> dict[str, Any]:
    """What the circuit says of itself."""
    return {
        "security_bits": int(circuit.configuration.security_level.value),
        "log2_p_error": math.log2(circuit.p_error),
        "bootstraps": circuit.programmable_bootstrap_count,
        "bits": circuit.graph.maximum_integer_bit_width(),
    }


def encrypted(model: Any, row: np.ndarray) -> dict[str, Any]:
    """One row, in the steps of `predict(fhe="execute")`."""
    circuit, parts = model.fhe_circuit, []
    while len(parts) < 3 and (not parts or parts[0][0] < LONG_S):
        begun, worked = time.perf_counter(), time.process_time()
        integers = model.quantize_input(row)
        sent, encrypt = timed(circuit.encrypt, integers)
        answer, run = timed(circuit.run, sent)
        opened, decrypt = timed(circuit.decrypt, answer)
        model.dequantize_output(opened)
        parts.append((time.perf_counter() - begun, encrypt, run, decrypt, time.process_time() - worked))
    names = ("encrypted_seconds", "encrypt_seconds", "run_seconds", "decrypt_seconds", "encrypted_cpu_seconds")
    return dict(zip(names, map(statistics.median, zip(*parts, strict=True)), strict=True)) | {
        "times": len(parts),
        "input_bytes": len(sent.serialize()),
        "output_bytes": len(answer.serialize()),
        "output_shape": list(opened.shape),
        "outputs_right": bool(np.array_equal(opened, model._inference(integers))),
    }


def measure(name: str, memory_gb: float) -> None:
    """All stages of a model."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_gb * 1e9),) * 2)
    import concrete.ml.sklearn

    family, settings = MODELS[name]
    train, labels, test, wanted = adult()
    model = getattr(concrete.ml.sklearn, family)(random_state=0, **settings)
    (model, twin), seconds = timed(model.fit_benchmark, train, labels)
    tell("fit", {"fit_seconds": seconds, "n_bits": model.n_bits})
    tell("classes", classes_in_the_clear(model, twin, train[:COMPILED_FOR], test, wanted))
    worked = time.process_time()
    circuit, seconds = timed(model.compile, train[:COMPILED_FOR])
    cpu = {"compile_cpu_seconds": time.process_time() - worked}
    tell("compile", {"compile_seconds": seconds} | cpu | compiled(circuit))
    worked = time.process_time()
    _, seconds = timed(circuit.keygen, True)
    cpu = {"keygen_cpu_seconds": time.process_time() - worked}
    keys = len(circuit.client.evaluation_keys.serialize())
    memory = circuit.size_of_bootstrap_keys + circuit.size_of_keyswitch_keys
    sizes = {"evaluation_key_bytes": keys, "evaluation_key_memory_bytes": memory}
    tell("keys", {"keygen_seconds": seconds} | cpu | sizes)
    tell("encrypted", encrypted(model, test[:1]))
    tell("memory", {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})


# ------------------------------------------------------------------------------------------- all of them


STAGES = ("fit", "classes", "compile", "keys", "encrypted", "memory")


def watched(name: str, minutes: float, memory_gb: float, until: str) -> dict[str, Any]:
    """The values of a model's process up to a stage; it is ended when a stage takes too long."""
    command = [sys.executable, __file__, "--one", name, "--memory-gb", str(memory_gb)]
    late = threading.Event()
    values: dict[str, Any] = {}
    left = list(STAGES[: STAGES.index(until) + 1])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:

        def end() -> None:
            late.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        assert process.stdout is not None
        while left:
            timer = threading.Timer(minutes * 60, end)
            timer.start()
            line = process.stdout.readline()
            timer.cancel()
            if not line:
                break
            with contextlib.suppress(json.JSONDecodeError):  # what a library prints
                told = json.loads(line)
                values |= told["values"]
                if told["stage"] in left:
                    left.remove(told["stage"])
                print(f"{name}: {told['stage']} {told['values']}", file=sys.stderr, flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if left:
        ended = values.pop("error", f"ended with {process.returncode}")
        values["failed"] = f"{left[0]}: {f'took more than {minutes:g} minutes' if late.is_set() else ended}"
    return values


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help=", ".join(MODELS)
    )
    parser.add_argument("--minutes", type=float, default=10, help="the most for one stage of a model (default: 10)")
    parser.add_argument("--memory-gb", type=float, default=14, help="the most memory of a model (default: 14)")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="the last stage (default: all)")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        try:
            measure(options.one, options.memory_gb)
        except Exception as error:
            tell("error", {"error": f"{type(error).__name__}: {error}"})
            raise
        return
    if not (fetch.folder() / "adult.npz").exists():
        sys.exit(f"{fetch.folder() / 'adult.npz'} is not there: benchmarks/data.md")
    for name in options.models:
        family, settings = MODELS[name]
        load, begun = os.getloadavg()[0], time.perf_counter()
        values = watched(name, options.minutes, options.memory_gb, options.until)
        record = {
            "benchmark": Path(__file__).stem,
            "key": {"system": "Concrete ML", "model": name},
            "settings": {"family": family, **settings, "trained_on": TRAINED_ON, "compiled_for": COMPILED_FOR},
            "values": values,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.perf_counter() - begun, 2),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "commit": commit(),
            "code": code(),
            "machine": machine(),
            "versions": versions(),
        }
        print(json.dumps(record, default=plain, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
