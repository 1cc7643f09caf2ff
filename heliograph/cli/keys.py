"""`heliograph keygen`, `encrypt`, `decrypt`: the client's side, over files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from heliograph.array_files import read_samples, write_array
from heliograph.cli.output import (
    emit,
    force_option,
    insecure_option,
    output_options,
    refuse_overwriting,
    remark,
)
from heliograph.errors import ProgramError, SecurityError
from heliograph.machine import without_core_file
from heliograph.tools.progress import progress_bar

PASSPHRASE_FILE = click.option(
    "--passphrase-file",
    default=None,
    metavar="FILE",
    help="Read the passphrase from the first line of this file (- for standard input).",
)
_MAX_PASSPHRASE = 4096


def _read_passphrase(path: str) -> str:
    try:
        if path == "-":
            line = sys.stdin.readline(_MAX_PASSPHRASE)
        else:
            with Path(path).open(encoding="utf-8") as file:
                line = file.readline(_MAX_PASSPHRASE)
    except (OSError, UnicodeDecodeError):
        raise ProgramError(f"the passphrase file {path} cannot be read as text") from None
    line = line.rstrip("\r\n")
    if not line:
        raise SecurityError(f"the passphrase file {path} has an empty first line")
    return line


def load_client(key: str, passphrase_file: str | None, insecure: bool) -> tuple[Any, str | None]:
    """The client of a key file, and its passphrase; asks for it where the file needs one and none was given."""
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.client.keyfile import is_protected

    without_core_file()
    secret: str | None = None
    if passphrase_file is not None:
        secret = _read_passphrase(passphrase_file)
    elif is_protected(key):
        if not sys.stdin.isatty():
            raise SecurityError(f"{key} is protected by a passphrase", hint="give --passphrase-file")
        secret = click.prompt(f"passphrase of {key}", hide_input=True, err=True)
    return Client.load(key, secret, allow_insecure=insecure), secret


@click.command("keygen")
@click.argument("artifact")
@click.option(
    "-o", "--output", default="client.key", show_default=True, metavar="FILE", help="Where to write the secret key."
)
@click.option(
    "--keys",
    default="eval.keys",
    show_default=True,
    metavar="FILE|DIR/",
    help="Where to write the evaluation keys, for the server. A folder gets one file for each key; so do keys of more than "
    "1 GiB.",
)
@click.option("--public", default=None, metavar="FILE", help="Also write the public part of the artifact.")
@click.option("--passphrase", is_flag=True, help="Ask for a passphrase to protect the secret key with.")
@PASSPHRASE_FILE
@click.option("--force", is_flag=True, help="Overwrite an existing secret key: what was encrypted for it is lost.")
@click.option("--no-memory-check", is_flag=True, help="Make the keys even if memory seems too small.")
@insecure_option
@output_options
def keygen_command(
    artifact: str,
    output: str,
    keys: str,
    public: str | None,
    passphrase: bool,
    passphrase_file: str | None,
    force: bool,
    no_memory_check: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a secret key and evaluation keys for ARTIFACT (the whole artifact or its public part).

    The secret key is written first. If the command was interrupted, run it again: it keeps the secret key and makes the
    evaluation keys that are missing.
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.container import file_kind
    from heliograph.artifact.public import PublicArtifact
    from heliograph.execution.memory import FOLDER_KEY_BYTES, key_making_bytes
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.memory import check_memory
    from heliograph.runtime.security import require_security
    from heliograph.runtime.wire.keyfolder import check_disk

    whole = None if file_kind(artifact) == "public artifact" else Artifact.load(artifact)
    described = PublicArtifact.load(artifact) if whole is None else whole.public()
    if not insecure:
        # Checked before a passphrase is asked for; with --insecure the client reports it.
        require_security(described, allow_insecure=False, for_whom=f"keygen {artifact}")
    total = sum(key.sent_bytes for key in described.evaluation_keys)
    in_memory = sum(key.bytes for key in described.evaluation_keys)
    one_by_one = keys.endswith("/") or Path(keys).is_dir() or in_memory > FOLDER_KEY_BYTES
    go_on = Path(output).exists() and not force and (one_by_one or not Path(keys).exists())
    if not go_on:
        refuse_overwriting(output, None if one_by_one else keys, force=force)
    if public is not None and Path(public).exists() and Path(public).read_bytes() != described.to_bytes():
        # --force must not decide this, because it would overwrite the secret key too.
        raise ProgramError(f"{public} already exists, and is another artifact's", hint="choose another name")
    if Path(output).resolve() == Path(keys).resolve():
        raise ProgramError("the secret key and the evaluation keys cannot have one file")
    if one_by_one and Path(keys).is_file():
        raise ProgramError(
            f"{keys} is a file, and {total / 1e6:.0f} MB of evaluation keys are written into a folder, one by one",
            hint="give another name: --keys keys/",
        )
    if not no_memory_check:
        folder = "" if one_by_one else "have them written one by one (--keys keys/), "
        check_memory(
            key_making_bytes(described.evaluation_keys, one_by_one),
            "making the evaluation keys",
            f"{folder}compile with a lower key_bytes, use a larger machine, or pass --no-memory-check",
        )
    if not one_by_one:
        check_disk(Path(keys).parent, total)
    without_core_file()
    secret: str | None = None
    if passphrase_file is not None:
        secret = _read_passphrase(passphrase_file)
    elif passphrase:
        secret = click.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if go_on:
        client = Client.load(output, secret, artifact=described, allow_insecure=insecure)
    else:
        client = Client(described, allow_insecure=insecure)
    if whole is not None:
        _note_server(whole, one_by_one, quiet)
    with progress_bar(quiet) as progress:
        # Save the secret key first: evaluation keys are useless without it.
        if not go_on:
            client.save(output, secret, overwrite=force)
        if one_by_one:
            client.write_evaluation_keys(keys, progress, check_memory=False)
            size = sum(file.stat().st_size for file in Path(keys).glob("*.key"))
        else:
            made = client.evaluation_keys(progress, check_memory=False)
            progress("writing", 0, 0)
            made.save(keys)
            size = Path(keys).stat().st_size
    if public is not None:
        described.save(public)
    values = {
        "secret_key": output,
        "protected": secret is not None,
        "evaluation_keys": keys,
        "evaluation_key_bytes": size,
        "client": client.id,
        "fingerprint": described.fingerprint,
    }
    was_there, each = " that was there" if go_on else "", ", one file each" if one_by_one else ""
    text = (
        f"{output}: the secret key{was_there}{', protected by a passphrase' if secret else ', readable by its owner only'}\n"
        f"{keys}: evaluation keys for the server, {size / 1e6:.1f} MB{each}"
    )
    emit(text, values, as_json=as_json, quiet=quiet)


def _note_server(artifact: Any, folder: bool, quiet: bool) -> None:
    """A line on stderr where this machine could not serve the artifact; another one may."""
    from heliograph.errors import TooLittleMemoryError
    from heliograph.runtime.server.server import require_server

    try:
        require_server(artifact, folder=folder)
    except TooLittleMemoryError as error:
        remark(f"this machine could not serve with these keys, another one may: {error.what}", quiet)


@click.command("encrypt")
@click.argument("key")
@click.argument("data", metavar="INPUT")
@click.option(
    "-o", "--output", default="input.ct", show_default=True, metavar="FILE", help="Where to write the encrypted input."
)
@click.option("--sample", type=int, default=None, help="Encrypt this sample of INPUT, whose first axis counts samples.")
@PASSPHRASE_FILE
@force_option
@insecure_option
@output_options
def encrypt_command(
    key: str,
    data: str,
    output: str,
    sample: int | None,
    passphrase_file: str | None,
    force: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Encrypt one sample with the secret KEY. INPUT is .npy, or .npz with one array per input."""
    client, _ = load_client(key, passphrase_file, insecure)
    names = [spec.name for spec in client.public.inputs]
    encrypted = client.encrypt(*read_samples(data, names, sample))
    if isinstance(encrypted, list):
        raise ProgramError(
            f"{data} holds more samples than one input takes",
            why=f"they are {len(encrypted)} inputs",
            hint="--sample 0 encrypts the first of them",
        )
    refuse_overwriting(output, force=force)
    encrypted.save(output)
    values = {
        "encrypted": output,
        "bytes": Path(output).stat().st_size,
        "client": client.id,
        "request": encrypted.request,
    }
    emit(f"{output}: {values['bytes'] / 1e6:.2f} MB", values, as_json=as_json, quiet=quiet)


@click.command("decrypt")
@click.argument("key")
@click.argument("data", metavar="OUTPUT.ct")
@click.option(
    "-o",
    "--output",
    default=None,
    metavar="FILE",
    help="Write the result to this file (.npy, or .npz for several outputs), readable by you alone.",
)
@click.option("--of", default=None, metavar="INPUT.ct", help="Refuse the answer unless it belongs to this input.")
@PASSPHRASE_FILE
@force_option
@insecure_option
@output_options
def decrypt_command(
    key: str,
    data: str,
    output: str | None,
    of: str | None,
    passphrase_file: str | None,
    force: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Decrypt the server's answer with the secret KEY; for a certified program, say what the answer certifies.

    The values are approximate, and their error depends on the secret key: do not share them with people you do not trust.
    """
    from heliograph.runtime.client.answers import read_answer
    from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

    client, _ = load_client(key, passphrase_file, insecure)
    result = client.decrypt(EncryptedOutput.load(data), of=None if of is None else EncryptedInput.load(of))
    names = [spec.name for spec in client.public.outputs]
    results = result if isinstance(result, tuple) else (result,)
    if output is not None:
        refuse_overwriting(output, force=force)
        write_array(output, result, names)
    values = {"outputs": dict(zip(names, results, strict=True)), "written": output}
    lines = [f"{name}: {value}" for name, value in zip(names, results, strict=True)]
    if client.public.certificate is not None:
        answer = read_answer(client.public, result)
        said = ("label", "votes", "certified", "radius", "error", "withdrawn")
        values["answer"] = {name: getattr(answer, name) for name in said}
        lines.append(str(answer))
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)
