"""`heliograph upgrade`: a client's key for a new version of the model; an artifact's file in the present format."""

from __future__ import annotations

from pathlib import Path

import click

from heliograph.cli.keys import PASSPHRASE_FILE, load_client
from heliograph.cli.output import emit, force_option, insecure_option, output_options, refuse_overwriting
from heliograph.errors import ProgramError
from heliograph.tools.progress import progress_bar


@click.command("upgrade")
@click.argument("key")
@click.argument("artifact", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the key file, or the artifact.")
@click.option(
    "--keys", default=None, metavar="DIR", help="The folder for the evaluation keys of ARTIFACT, for the server."
)
@click.option(
    "--reuse",
    default=None,
    metavar="DIR|FILE",
    help="The evaluation keys that were made for KEY: those that ARTIFACT needs alike are copied, not made.",
)
@click.option("--public", default=None, metavar="FILE", help="The public part that was made from the earlier artifact.")
@PASSPHRASE_FILE
@force_option
@insecure_option
@output_options
def upgrade_command(
    key: str,
    artifact: str | None,
    output: str,
    keys: str | None,
    reuse: str | None,
    public: str | None,
    passphrase_file: str | None,
    force: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Use the secret KEY for ARTIFACT too, a new version of the model on the same ring (or its public part).

    KEY stays as it is; results for the old artifact are decrypted with it. A server that serves both artifacts keeps the
    evaluation keys that both need alike, and asks for the others. If the command was interrupted, run it again: it goes
    on.

    For example: heliograph upgrade client.key new.public -o new.key --keys new-keys/ --reuse keys/

    With an artifact of an earlier format in place of KEY, write it in the present one; keys and encrypted inputs for it
    stay good. If its fingerprint is no longer that of its --public part, give that too.

    For example: heliograph upgrade model.helio -o now.helio --public model.public
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.container import file_kind
    from heliograph.artifact.public import PublicArtifact
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.wire.keyfolder import load_keys

    if file_kind(key) in ("artifact", "public artifact"):
        given_too = [name for name, value in (("ARTIFACT", artifact), ("--keys", keys), ("--reuse", reuse)) if value]
        if given_too:
            raise ProgramError(
                f"{key} is an artifact, and {given_too[0]} belongs to a key", hint="give the key file first"
            )
        refuse_overwriting(output, force=force)
        _rewrite(key, output, public, as_json, quiet)
        return
    if artifact is None or keys is None or public is not None or force:
        raise ProgramError(
            f"{key} is no artifact: a key is upgraded for an ARTIFACT, with --keys, without --public and --force",
            hint="heliograph upgrade client.key new.public -o new.key --keys new-keys/",
        )
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


def _rewrite(path: str, output: str, public: str | None, as_json: bool, quiet: bool) -> None:
    """Write an artifact, or its public part, in the present format."""
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.container import file_kind
    from heliograph.artifact.public import PublicArtifact

    found: Artifact | PublicArtifact
    if file_kind(path) == "artifact":
        found = Artifact.load(path)
        if public is not None:
            found = found.belonging_to(PublicArtifact.load(public))
    elif public is not None:
        raise ProgramError(f"{path} is a public part itself", hint="leave --public out")
    else:
        found = PublicArtifact.load(path)
    found.save(output)
    values = {"artifact": output, "fingerprint": found.fingerprint}
    emit(f"{output}: {found.name!r}, fingerprint {found.fingerprint}", values, as_json=as_json, quiet=quiet)
