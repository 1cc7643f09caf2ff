"""`heliograph transfer`: train a classifier on encrypted features."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli.options import COMPILER_SECTIONS, chosen_options, compiler_options
from heliograph.cli.output import emit, insecure_option, output_options, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.tools.progress import progress_bar

if TYPE_CHECKING:
    from heliograph.transfer.clear import Epoch, History


@click.group()
def transfer() -> None:
    """Train a classifier on encrypted features.

    The client encrypts the data, the server trains on ciphertexts, and the client decides when to stop."""


@transfer.command(
    cls=SectionedCommand,
    sections={
        "Training": (
            "folder",
            "minibatch",
            "rate",
            "logit_range",
            "weight_range",
            "hidden",
            "hidden_range",
            "patience",
            "most_epochs",
            "fixed_epochs",
            "seed",
            "simulate",
        ),
        **COMPILER_SECTIONS,
    },
)
@click.argument("data", metavar="DATA.npz")
@click.option(
    "--folder", required=True, metavar="DIR", help="Folder for the files of client and server; resume reads it."
)
@click.option("--minibatch", type=int, default=1024, show_default=True, help="Number of samples in a step.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Learning rate.")
@click.option("--logit-range", type=float, default=20.0, show_default=True, help="Logits stay within [-R, R].")
@click.option("--weight-range", type=float, default=8.0, show_default=True, help="Weights stay within [-W, W].")
@click.option("--hidden", type=int, default=0, show_default=True, help="Units of a hidden layer; 0: none.")
@click.option(
    "--hidden-range", type=float, default=4.0, show_default=True, help="Inputs of its activation stay within [-H, H]."
)
@click.option(
    "--patience",
    type=int,
    default=3,
    show_default=True,
    help="Stop after this many epochs without a smaller validation loss.",
)
@click.option(
    "--most-epochs", type=int, default=100, show_default=True, help="Stop after this many epochs at the latest."
)
@click.option(
    "--fixed-epochs",
    is_flag=True,
    help="Train exactly --most-epochs and keep the best weights without telling the server which they are.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of the samples.")
@click.option("--simulate", is_flag=True, help="Train on the simulator, without keys.")
@compiler_options
@output_options
def train(
    data: str,
    folder: str,
    minibatch: int,
    rate: float,
    logit_range: float,
    weight_range: float,
    hidden: int,
    hidden_range: float,
    patience: int,
    most_epochs: int,
    fixed_epochs: bool,
    seed: int,
    simulate: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Train on DATA.npz until the validation loss stops falling.

    The file holds features and labels: x_train, y_train, x_val, y_val.
    """
    from heliograph.transfer.clear import History
    from heliograph.transfer.clear import train as train_run
    from heliograph.transfer.data import TransferData
    from heliograph.transfer.local import prepare
    from heliograph.transfer.settings import TransferSettings
    from heliograph.transfer.simulated import SimulatedRun

    settings = TransferSettings(
        batch=minibatch,
        rate=rate,
        logit_range=logit_range,
        weight_range=weight_range,
        hidden=hidden,
        hidden_range=hidden_range,
        patience=patience,
        most_epochs=most_epochs,
        fixed_epochs=fixed_epochs,
        seed=seed,
    )
    loaded = TransferData.load(data)
    with progress_bar(quiet) as progress:
        progress("compiling", 0, 0)
        artifact = prepare(folder, loaded, settings, chosen_options(given))
    remark(
        f"a step takes {artifact.report.figures.predicted_ms / 1e3:.0f} s by the plan; {loaded.steps(settings)} in an epoch",
        quiet,
    )
    if simulate:
        history = train_run(SimulatedRun(artifact, loaded, settings), loaded, settings, History(), _told(quiet))
        _end(history, folder, as_json, quiet)
        return
    _go_on(folder, data, given["security_bits"] is not None, as_json, quiet)


@transfer.command()
@click.argument("folder")
@click.argument("data", metavar="DATA.npz")
@insecure_option
@output_options
def resume(folder: str, data: str, insecure: bool, as_json: bool, quiet: bool) -> None:
    """Resume the training in FOLDER on the same data."""
    _go_on(folder, data, insecure, as_json, quiet)


@transfer.command()
@click.argument("folder")
@click.argument("data", metavar="DATA.npz")
@output_options
def evaluate(folder: str, data: str, as_json: bool, quiet: bool) -> None:
    """Measure the trained weights on x_test and y_test of DATA.npz, in the clear."""
    from heliograph.transfer.clear import accuracy
    from heliograph.transfer.data import load_test
    from heliograph.transfer.local import history_of, layers_of, weights_of

    (x, y), weights, history = load_test(data), weights_of(folder), history_of(folder)
    layers = layers_of(folder)
    if x.shape[1] + 1 != layers.inputs:
        raise ProgramError(
            f"test samples have {x.shape[1]} features, the weights in {folder} are of {layers.inputs - 1}"
        )
    share = accuracy(weights, x, y, layers)
    emit(
        f"accuracy {share:.4f} of {len(y)} test samples, weights of epoch {history.best}",
        {"accuracy": share, "samples": len(y), "epoch": history.best},
        as_json=as_json,
        quiet=quiet,
    )


def _go_on(folder: str, data: str, insecure: bool, as_json: bool, quiet: bool) -> None:
    from heliograph.transfer.data import TransferData
    from heliograph.transfer.local import go_on

    with progress_bar(quiet) as progress:
        history = go_on(folder, TransferData.load(data), progress, _told(quiet), allow_insecure=insecure)
    _end(history, folder, as_json, quiet)


def _told(quiet: bool) -> Any:
    begun = time.monotonic()

    def watch(epoch: Epoch) -> None:
        remark(
            f"epoch {epoch.number}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, largest logit "
            f"{epoch.largest_logit:.2f}, {time.monotonic() - begun:.0f} s",
            quiet,
        )

    return watch


def _end(history: History, folder: str, as_json: bool, quiet: bool) -> None:
    if not history.epochs:
        raise ProgramError(
            f"the training in {folder} ended in its first epoch",
            why=history.stopped,
            hint="train in another folder with wider ranges, or a smaller rate",
        )
    best = history.epochs[history.best - 1]
    emit(
        f"stopped after epoch {len(history.epochs)}: {history.stopped}\n"
        f"best: epoch {best.number}, loss {best.loss:.4f}, accuracy {best.accuracy:.4f}",
        {
            "epochs": [asdict(epoch) for epoch in history.epochs],
            "best": history.best,
            "stopped": history.stopped,
            "folder": str(Path(folder)),
        },
        as_json=as_json,
        quiet=quiet,
    )
