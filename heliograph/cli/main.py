"""The `heliograph` command: argument parsing only; every command's work is elsewhere in the package.

Commands are imported when they are called, so that `heliograph --help` stays fast.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import click

from heliograph.cli.sections import write_sections
from heliograph.errors import HeliographError, InsecureWarning, InternalError, VerifyError, packages_named

# The exit code for a fault of ours (EX_SOFTWARE of sysexits.h).
_FAULT = 70
# name -> (module, attribute, one-line help). The help is given here so that --help imports no command.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "check": ("heliograph.cli.language", "check", "Check programs in the language."),
    "fmt": ("heliograph.cli.language", "fmt", "Format programs in the language."),
    "compile": ("heliograph.cli.compile", "compile_command", "Compile a model or a program; print the bill."),
    "refine": ("heliograph.cli.refine", "refine_command", "Retrain a network for polynomials of low degree."),
    "certify": ("heliograph.cli.certify", "certify_command", "Certify that encrypted answers are robust or fair."),
    "inspect": ("heliograph.cli.inspect", "inspect_command", "Print an artifact's bill, program or levels; draw it."),
    "explain": ("heliograph.cli.explain", "explain_command", "Explain a name in a bill in one line."),
    "tune": ("heliograph.cli.tune", "tune_command", "Show what accuracy costs, over degrees, batches, precision."),
    "diff": ("heliograph.cli.diff", "diff_command", "Compare the costs of two artifacts."),
    "export": ("heliograph.cli.export", "export_command", "Write a program for OpenFHE or as MLIR."),
    "keygen": ("heliograph.cli.keys", "keygen_command", "Make a secret key and evaluation keys."),
    "upgrade": ("heliograph.cli.upgrade", "upgrade_command", "Use a secret key for a new version of the model."),
    "encrypt": ("heliograph.cli.keys", "encrypt_command", "Encrypt one sample with the secret key."),
    "evaluate": (
        "heliograph.cli.evaluate",
        "evaluate_command",
        "Evaluate an artifact on encrypted inputs (the server's part).",
    ),
    "decrypt": ("heliograph.cli.keys", "decrypt_command", "Decrypt the server's answer with the secret key."),
    "serve": ("heliograph.cli.serve", "serve_command", "Serve artifacts over HTTP to many clients."),
    "token": ("heliograph.cli.serve", "token_command", "Create or revoke a client's token for a server."),
    "run": ("heliograph.cli.run", "run_command", "Encrypt, evaluate and decrypt one sample in one process."),
    "doctor": ("heliograph.cli.doctor", "doctor_command", "Check this machine's setup."),
    "demo": ("heliograph.cli.demo", "demo", "Train, compile and classify encrypted images."),
    "approx": ("heliograph.cli.approx", "approx", "Approximate functions by polynomials, with proofs."),
    "transfer": ("heliograph.cli.transfer", "transfer", "Train a classifier on encrypted features."),
    "search": ("heliograph.cli.search", "search", "Search an index of vectors with encrypted queries."),
    "dp": ("heliograph.cli.dp", "dp", "Train with differential privacy; account for it and audit it."),
}
# All commands, grouped as --help shows them.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "First steps": ("doctor", "demo"),
    "Compile": ("compile", "inspect", "explain", "tune", "diff", "export", "refine", "certify", "approx"),
    "Run": ("run", "keygen", "upgrade", "encrypt", "evaluate", "decrypt", "search", "serve", "token"),
    "The language": ("check", "fmt"),
    "Training": ("transfer", "dp"),
}


class _LazyGroup(click.Group):
    """A click group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(
            formatter,
            {title: [(name, _COMMANDS[name][2]) for name in names] for title, names in _SECTIONS.items()},
        )


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="heliograph", prog_name="heliograph")
def cli() -> None:
    """Compile machine-learning models for homomorphic encryption, and run them on encrypted data.

    For example: heliograph compile model.py:net --calibration samples.npy

    Exit codes: 0 if all went well, 1 if a check found what it looks for (doctor, fmt, dp), 2 for an error in what was given,
    70 for a fault of Heliograph, 130 after Ctrl-C.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error is one text on stderr.

    Exit codes: 2 for an error of the user's making, 70 (EX_SOFTWARE) for a fault of ours, 130 and 141 for interruptions.
    """
    try:
        with warnings.catch_warnings(), packages_named():
            # Shown at every step, even with --quiet, and not in Python's format.
            warnings.simplefilter("always", InsecureWarning)
            warnings.showwarning = _show_warning(warnings.showwarning)
            cli.main(args=arguments, prog_name="heliograph", standalone_mode=False)
    except HeliographError as error:
        # Imported here because it loads the compiler's options, which most calls do not need.
        from heliograph.cli.options import in_flags

        click.echo(f"error: {in_flags(error)}", err=True)
        sys.exit(_FAULT if isinstance(error, InternalError | VerifyError) else 2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except MemoryError:
        click.echo("error: out of memory", err=True)
        sys.exit(2)
    except Exception as error:
        if os.environ.get("HELIOGRAPH_DEBUG"):
            raise
        click.echo(
            f"error: {type(error).__name__}: {error}\n"
            "  why: this is a fault of Heliograph, not of yours\n"
            "  try: run it again with HELIOGRAPH_DEBUG=1 and report what it prints",
            err=True,
        )
        sys.exit(_FAULT)


def _show_warning(usual: Callable[..., None]) -> Callable[..., None]:
    def show(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> None:
        if issubclass(category, InsecureWarning):
            from heliograph.cli.options import with_flags

            click.echo(
                f"INSECURE: {with_flags(message.args[0] if isinstance(message, Warning) else message)}", err=True
            )
        else:
            usual(message, category, *more, **named)

    return show


if __name__ == "__main__":
    main()
