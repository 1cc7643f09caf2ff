"""`heliograph dp train` and `heliograph dp audit`: from a function in a file to a private model, and its audit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from heliograph.cli.compile import load_object
from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError, WireError
from heliograph.files import open_file

_RUN = "run.json"


@click.command(
    "train",
    cls=SectionedCommand,
    sections={
        "The guarantee": ("epsilon", "noise", "delta", "seed", "secure_noise"),
        "Training": ("epochs", "batch_size", "lr", "clip", "optimizer", "momentum", "physical_batch_size", "precision"),
        "The method": (
            "method",
            "sampler",
            "most",
            "bands",
            "norm_noise",
            "adapt_clip",
            "planned_norm_share",
            "oversampling",
        ),
        "The size of the data set": ("public_size", "size_noise"),
        "Files": ("out", "force"),
    },
)
@click.argument("target", metavar="FILE.py:MAKE")
@click.option(
    "--method",
    type=click.Choice(["dpis", "dp_sgd", "band_mf"]),
    default="dpis",
    show_default=True,
    help="Training method.",
)
@click.option("--bands", type=int, default=None, help="band_mf: number of steps that share noise.")
@click.option("--epsilon", type=float, default=None, help="The epsilon to guarantee; the noise follows from it.")
@click.option(
    "--noise", type=float, default=None, help="Instead of --epsilon: the noise multiplier, from which epsilon follows."
)
@click.option("--delta", type=float, required=True, help="The delta to guarantee, well below 1 / number of records.")
@click.option("--epochs", type=int, required=True, help="Number of passes over the data.")
@click.option("--batch-size", type=float, required=True, help="Expected number of records in a step.")
@click.option(
    "--sampler",
    type=click.Choice(["poisson", "fixed_size", "allocation"]),
    default="poisson",
    show_default=True,
    help="How to draw batches; all but poisson need --method dp_sgd and --public-size.",
)
@click.option("--most", type=int, default=None, help="With poisson: keep at most this many records of a batch.")
@click.option("--lr", type=float, required=True, help="Learning rate.")
@click.option("--clip", type=float, required=True, help="Bound on the norm of a record's gradient.")
@click.option("--optimizer", type=click.Choice(["sgd", "adam"]), default="sgd", show_default=True, help="Optimizer.")
@click.option("--momentum", type=float, default=0.9, show_default=True, help="Momentum of sgd.")
@click.option("--public-size", type=int, default=None, help="The number of records, if it is public.")
@click.option(
    "--size-noise",
    type=float,
    default=100.0,
    show_default=True,
    help="Noise on the number of records, if it is not public.",
)
@click.option(
    "--norm-noise",
    type=float,
    default=0.02,
    show_default=True,
    help="dpis: noise on the sum of gradient norms divided by --clip, as a share of the number of records.",
)
@click.option("--adapt-clip", is_flag=True, help="dpis: adapt the clipping bound, up to 4 times --clip.")
@click.option(
    "--planned-norm-share",
    default=None,
    metavar="S[,S...]",
    help="dpis: use this public share of N times --clip in place of the noisy sum of norms; one, or one per epoch.",
)
@click.option(
    "--oversampling",
    type=float,
    default=2.0,
    show_default=True,
    help="dpis: factor by which a record's norm may grow before it is clipped.",
)
@click.option(
    "--physical-batch-size",
    type=int,
    default=256,
    show_default=True,
    help="Records to compute at a time; changes memory, not results.",
)
@click.option(
    "--precision",
    type=click.Choice(["full", "bfloat16"]),
    default="full",
    show_default=True,
    help="Precision of forward and backward passes; norms, clipping and sums stay in float32 and float64.",
)
@click.option(
    "--seed",
    type=int,
    default=None,
    help="Make the run reproducible. There is no guarantee against anyone who knows the seed.",
)
@click.option(
    "--secure-noise/--fast-noise",
    default=None,
    help="Draw noise from a cryptographically secure generator or a faster one (default: secure, unless --seed is given).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the model and the report.",
)
@force_option
@output_options
def train(target: str, out: Path, force: bool, as_json: bool, quiet: bool, **given: Any) -> None:
    """Train a PyTorch module with differential privacy.

    MAKE is a function in FILE.py that returns (module, train_set, test_set) and, optionally, a loss with one value per
    record (default: cross-entropy). Accuracy is measured on the test set, which must need no protection.

    The folder --out gets the model (model.npz), the report (report.json, report.txt) and, while the run lasts, a secret
    checkpoint from which the same command resumes. noise_multiplier in the JSON is the standard deviation of the noise
    divided by the clipping bound, the smallest of the run.
    """
    from heliograph.dp.training.checkpoint import save_model

    if not (out / "run").exists():
        # If there is a checkpoint, the run resumes from it.
        refuse_overwriting(*(out / name for name in ("model.npz", "report.json", "report.txt", _RUN)), force=force)

    if given["seed"] is not None:
        remark(
            "the seed is known: for whoever knows it this run has no guarantee; leave --seed out for a private model",
            quiet,
        )
    module, train_set, test_set, loss = _made(target, given["seed"])
    out.mkdir(parents=True, exist_ok=True)
    settings = {"target": _absolute(target), **given}
    trainer = _trainer(
        settings, module, train_set, loss, public_set=test_set, checkpoint=out / "run", progress=not quiet
    )

    def save(report: Any) -> None:
        save_model(trainer.module, out / "model.npz")
        (out / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
        (out / "report.txt").write_text(report.words() + "\n", encoding="utf-8")
        # Without the seed: nothing in the folder may reveal the noise.
        kept = {"target": _absolute(target), **given, "seed": None}
        (out / _RUN).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    report = trainer.fit(save)
    with contextlib.suppress(OSError):
        (out / "run").rmdir()
    full = report.to_json()
    keys = ("name", "mechanism", "count", "sensitivity", "noise_std", "sampling_probability")
    values = {
        "method": full["method"],
        "accuracy": full["accuracy"],
        "epsilon_lower": full["epsilon_lower"],
        "epsilon_upper": full["epsilon_upper"],
        "delta": full["delta"],
        "steps": full["steps"],
        "noise_multiplier": full["noise_multiplier"],
        "seconds": full["seconds"],
        "secure_noise": full["secure_noise"],
        "releases": [{key: release[key] for key in keys} for release in full["releases"]],
    }
    shown = "" if report.accuracy is None else f"Accuracy on the test set: {report.accuracy:.4f}\n"
    emit(f"{report.words()}\n\n{shown}Written to {out}.", values, as_json=as_json, quiet=quiet)


@click.command("audit")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["gradients", "records"]),
    default="gradients",
    show_default=True,
    help="Kind of canary: a record with a chosen gradient, or one with permuted inputs.",
)
@click.option("--canaries", type=int, default=1000, show_default=True, help="Number of canaries.")
@click.option("--guesses", type=int, default=None, help="Number of canaries to guess (default: half).")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the lower bound.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the canaries and of their coins.")
@output_options
def audit(
    folder: Path,
    kind: Any,
    canaries: int,
    guesses: int | None,
    confidence: float,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Audit the training run in FOLDER with canaries.

    Repeats the run and prints an empirical lower bound on epsilon beside the proven upper bound; of dp_sgd also bounds
    on noise, inclusion probability and clipping bound, measured at the canaries.

    Each canary is included by a fair coin, and the noise is fresh. What is printed is one more release about the same
    data: keep it to those who hold the data. Exit code 1 if the guarantee is refuted.
    """
    from heliograph.dp.training.audit import audit_training

    try:
        with open_file(folder / _RUN) as file:
            settings = json.loads(file.read())
        target = settings["target"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WireError(f"{folder} holds no run of `heliograph dp train`", where=folder, why=str(error)) from None
    module, train_set, _, loss = _made(target, None)

    def build(data: object, observer: Callable[[str, Any], None]) -> Any:
        return _trainer(settings, module, data, loss, observer=observer, progress=not quiet)

    found = audit_training(
        build, train_set, kind=kind, count=canaries, guesses=guesses, confidence=confidence, seed=seed
    )
    emit(found.words(), found.to_json(), as_json=as_json, quiet=quiet)
    if found.refuted:
        raise SystemExit(1)


def _made(target: str, seed: int | None) -> tuple[Any, Any, Any, Any]:
    """The module, the training set, the test set and the loss that MAKE returns."""
    import torch

    if seed is not None:
        # Initial parameters are drawn before any data is touched; the seed only decides whether they are repeatable.
        torch.manual_seed(seed)
    found = load_object(target, called=callable)
    if not isinstance(found, tuple) or len(found) not in (3, 4) or not isinstance(found[0], torch.nn.Module):
        raise ProgramError(
            f"{target} did not return (module, train_set, test_set)",
            where=target,
            hint="return these three, or four with a loss that gives one value for each record",
        )
    return found if len(found) == 4 else (*found, torch.nn.CrossEntropyLoss(reduction="none"))


def _trainer(settings: dict[str, Any], module: Any, train_set: object, loss: Any, **further: Any) -> Any:
    import torch

    from heliograph.dp.training import DPTrainer, ImportanceOptions

    def optimizer(parameters: list[Any]) -> Any:
        if settings["optimizer"] == "adam":
            return torch.optim.Adam(parameters, lr=settings["lr"])
        return torch.optim.SGD(parameters, lr=settings["lr"], momentum=settings["momentum"])

    return DPTrainer(
        module,
        loss,
        optimizer,
        train_set,
        method=settings["method"],
        epsilon=settings["epsilon"],
        noise_multiplier=settings["noise"],
        delta=settings["delta"],
        epochs=settings["epochs"],
        **_batches(settings),
        max_grad_norm=settings["clip"],
        public_size=settings["public_size"],
        size_noise=settings["size_noise"],
        bands=settings.get("bands"),
        seed=settings["seed"],
        secure_noise=settings["secure_noise"],
        physical_batch_size=settings["physical_batch_size"],
        precision=settings.get("precision", "full"),
        dpis=ImportanceOptions(
            oversampling=settings["oversampling"],
            norm_noise=settings["norm_noise"],
            adapt_clipping=settings["adapt_clip"],
            planned_norm_share=_shares(settings["planned_norm_share"]),
        ),
        **further,
    )


def _batches(settings: dict[str, Any]) -> dict[str, Any]:
    """`batch_size`, or the sampler that was asked for."""
    from heliograph.dp import samplers

    size, kind, most = settings["batch_size"], settings.get("sampler", "poisson"), settings.get("most")
    if most is not None and kind != "poisson":
        raise ProgramError("--most is for Poisson sampling", where="--most")
    if kind == "poisson":
        return {"batch_size": size} if most is None else {"sampler": samplers.TruncatedPoissonSampler(size, most)}
    records = settings["public_size"]
    if records is None:
        raise ProgramError(f"the sampler {kind} needs a public number of records", where="--public-size")
    if kind == "allocation":
        return {"sampler": samplers.AllocationSampler(max(1, int(records // size)), float(records))}
    if size != int(size):
        raise ProgramError(f"a batch of {size:g} records", where="--batch-size", why="its size is a whole number here")
    return {"sampler": samplers.FixedSizeSampler(int(size))}


def _shares(text: str | None) -> float | tuple[float, ...] | None:
    try:
        found = tuple(float(each) for each in text.split(",")) if text is not None else ()
    except ValueError:
        raise ProgramError(f"{text!r} is not a share or a list of shares", where="--planned-norm-share") from None
    return found[0] if len(found) == 1 else found or None


def _absolute(target: str) -> str:
    file, _, name = target.rpartition(":")
    return f"{Path(file).resolve()}:{name}"
