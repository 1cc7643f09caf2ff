"""`heliograph search`: an index of vectors, and encrypted queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from heliograph.array_files import read_arrays
from heliograph.cli.keys import PASSPHRASE_FILE, load_client
from heliograph.cli.output import emit, force_option, insecure_option, output_options, refuse_overwriting
from heliograph.errors import ProgramError


@click.group()
def search() -> None:
    """Search an index of vectors with encrypted queries."""


@search.command()
@click.argument("vectors", metavar="VECTORS.npy")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the index, an artifact.")
@click.option("--public", default=None, metavar="FILE", help="Also write its public part, for clients.")
@click.option(
    "--names", default=None, metavar="FILE", help="One name a line, one for each vector; clients can read them."
)
@click.option(
    "--metric", type=click.Choice(["cosine", "dot"]), default="cosine", show_default=True, help="What scores measure."
)
@click.option("--largest", type=float, default=None, help="For dot: the largest size of a component of a query.")
@click.option(
    "--answer",
    type=click.Choice(["scores", "top1", "matches"]),
    default="scores",
    show_default=True,
    help="What clients learn: all scores, the nearest entry, or the entries above the threshold.",
)
@click.option("--threshold", type=float, default=None, help="For matches: the score that entries must exceed.")
@click.option("--gap", type=float, default=None, help="For top1 and matches: the smallest difference to tell apart.")
@click.option(
    "--encrypted", is_flag=True, help="Leave the vectors out: they come encrypted (heliograph search encrypt)."
)
@force_option
@output_options
def build(
    vectors: str,
    output: str,
    public: str | None,
    names: str | None,
    metric: Any,
    largest: float | None,
    answer: Any,
    threshold: float | None,
    gap: float | None,
    encrypted: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make an index of the rows of VECTORS.npy.

    Then serve it (heliograph serve), or evaluate queries here. The server sees no query; clients see the scores of all
    vectors, and with enough queries could compute the vectors. With --encrypted the server sees no vector either.
    """
    from heliograph.private.search import search_index

    refuse_overwriting(output, public, force=force)
    listed = None if names is None else _lines(names)
    made = search_index(
        _array(vectors),
        names=listed,
        metric=metric,
        largest=largest,
        answer=answer,
        threshold=threshold,
        gap=gap,
        encrypted=encrypted,
        name=Path(output).stem,
    )
    made.save(output)
    if public is not None:
        made.public().save(public)
    values = {"index": output, "public": public, **made.report.to_dict()["predicted"]}
    emit(f"{output}\n{made.report}", values, as_json=as_json, quiet=quiet)


@search.command("encrypt")
@click.argument("key")
@click.argument("vectors", metavar="VECTORS.npy")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the encrypted vectors.")
@PASSPHRASE_FILE
@insecure_option
@force_option
@output_options
def encrypt(
    key: str,
    vectors: str,
    output: str,
    passphrase_file: str | None,
    insecure: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Encrypt the rows of VECTORS.npy for an index that was built with --encrypted.

    The file is for the server: heliograph serve INDEX --kept NAME=FILE.
    """
    from heliograph.private.search import encrypt_index

    refuse_overwriting(output, force=force)
    client, _ = load_client(key, passphrase_file, insecure)
    encrypt_index(client, _array(vectors)).save(output)
    emit(output, {"kept": output, "bytes": Path(output).stat().st_size}, as_json=as_json, quiet=quiet)


@search.command()
@click.argument("key")
@click.argument("query", metavar="QUERY.npy")
@click.option("--keys", required=True, metavar="FILE|DIR", help="The evaluation keys of KEY (heliograph keygen).")
@click.option("--url", default=None, metavar="URL", help="The server that serves the index.")
@click.option("--token-file", default=None, metavar="FILE", help="The file with the server's token, with --url.")
@click.option("--index", default=None, metavar="FILE", help="The index itself, to search here, without a server.")
@click.option("--kept", default=None, metavar="FILE", help="The encrypted vectors of the index, with --index.")
@click.option(
    "-k",
    default=None,
    type=click.IntRange(min=1),
    help="Hits of each query (default: 10, or all that the server found).",
)
@PASSPHRASE_FILE
@insecure_option
@output_options
def query(
    key: str,
    query: str,
    keys: str,
    url: str | None,
    token_file: str | None,
    index: str | None,
    kept: str | None,
    k: int | None,
    passphrase_file: str | None,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the best hits of QUERY.npy, one vector or one a row.

    For example: heliograph search query client.key question.npy --keys keys/ --url https://example.org --token-file token
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.private.search import search
    from heliograph.runtime.server.server import Server
    from heliograph.runtime.wire.keyfolder import load_keys
    from heliograph.runtime.wire.messages import EncryptedInput
    from heliograph.serving.remote.server import RemoteServer

    if (url is None) == (index is None) or (url is None) != (token_file is None):
        raise ProgramError("a query goes to a server or to an index", hint="--url and --token-file, or --index")
    if kept is not None and index is None:
        raise ProgramError("a server over HTTP has the encrypted vectors itself", hint="--kept goes with --index")
    client, _ = load_client(key, passphrase_file, insecure)
    evaluation, vectors = load_keys(keys), _array(query)
    if index is not None:
        own = None if kept is None else EncryptedInput.load(kept)
        with Server(Artifact.load(index), evaluation, allow_insecure=insecure, kept=own) as server:
            found = search(server, client, vectors, k)
    else:
        assert url is not None
        assert token_file is not None
        with RemoteServer(url, _lines(token_file)[0], allow_insecure=insecure) as remote:
            remote.register(evaluation)
            found = search(remote, client, vectors, k)
    many = found if vectors.ndim == 2 else [found]
    lines = []
    for number, hits in enumerate(many):
        if len(many) > 1:
            lines.append(f"query {number}")
        lines += [f"{hit.score:9.4f}  {hit.place:>8}" + (f"  {hit.name}" if hit.name else "") for hit in hits]
    values = {"hits": [[hit._asdict() for hit in hits] for hits in many]}
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)


def _array(path: str) -> Any:
    arrays = list(read_arrays(path).values())
    if len(arrays) != 1:
        raise ProgramError(f"{path} holds {len(arrays)} arrays", hint="give one, as .npy")
    return arrays[0]


def _lines(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ProgramError(f"{path} cannot be read as text") from None
    if not lines:
        raise ProgramError(f"{path} is empty")
    return lines
