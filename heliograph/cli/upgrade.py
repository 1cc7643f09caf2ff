"""`heliograph upgrade`: a client's key for a new version of the model."""

from __future__ import annotations

from pathlib import Path

import click

from heliograph.cli.keys import PASSPHRASE_FILE, load_client
from heliograph.cli.output import emit, insecure_option, output_options
from heliograph.errors import ProgramError
from heliograph.tools.progress import progress_bar


@click.command("upgrade")
@click.argument("key")
@click.argument("artifact")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the key file for ARTIFACT.")
@click.option(
    "--keys", required=True, metavar="DIR", help="The folder for the evaluation keys of ARTIFACT, for the server."
)
@click.option(
    "--reuse",
    default=None,
    metavar="DIR|FILE",
    help="The evaluation keys that were made for KEY: those that ARTIFACT needs alike are copied, not made.",
)
@PASSPHRASE_FILE
@insecure_option
@output_options
def upgrade_command(
    key: str,
    artifact: str,
    output: str,
    keys: str,
    reuse: str | None,
    passphrase_file: str | None,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Use the secret KEY for ARTIFACT too, a new version of the model on the same ring (or its public part).

    KEY stays as it is; results for the old artifact are decrypted with it. A server that serves both artifacts keeps the
    evaluation keys that both need alike, and asks for the others. If the command was interrupted, run it again: it goes
    on.

    For example: heliograph upgrade client.key new.public -o new.key --keys new-keys/ --reuse keys/
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.container import file_kind
    from heliograph.artifact.public import PublicArtifact
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.wire.keyfolder import load_keys

    if Path(keys).is_file():
        raise ProgramError(f"{keys} is a file", hint="give a folder: --keys new-keys/")
    known = file_kind(artifact) == "public artifact"
    described = PublicArtifact.load(artifact) if known else Artifact.load(artifact).public()
    earlier, secret = load_client(key, passphrase_file, insecure)
    client = earlier.for_artifact(described, allow_insecure=insecure)
    given = None if reuse is None else load_keys(reuse)
    kept = frozenset() if given is None else client.kept_keys(given)
    if not Path(output).exists():
        client.save(output, secret)
    elif Client.load(output, secret, artifact=described, allow_insecure=insecure).id != client.id:
        raise ProgramError(f"{output} already exists, with another secret key", hint="choose another name")
    with progress_bar(quiet) as progress:
        client.write_evaluation_keys(keys, progress, reuse=given)
    total = len(described.evaluation_keys)
    values = {"secret_key": output, "evaluation_keys": keys, "keys": total, "kept": len(kept), "client": client.id}
    text = f"{output}: the secret key for {described.name!r}\n{keys}: {total} evaluation keys, {len(kept)} of them kept"
    emit(text, values, as_json=as_json, quiet=quiet)
