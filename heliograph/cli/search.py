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
@force_option
@output_options
def build(
    vectors: str,
    output: str,
    public: str | None,
    names: str | None,
    metric: Any,
    largest: float | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make an index of the rows of VECTORS.npy.

    Then serve it (heliograph serve), or evaluate queries here. The server sees no query; clients see the scores of all
    vectors, and with enough queries could compute the vectors.
    """
    from heliograph.private.search import search_index

    refuse_overwriting(output, public, force=force)
    listed = None if names is None else _lines(names)
    made = search_index(_array(vectors), names=listed, metric=metric, largest=largest, name=Path(output).stem)
    made.save(output)
    if public is not None:
        made.public().save(public)
    values = {"index": output, "public": public, **made.report.to_dict()["predicted"]}
    emit(f"{output}\n{made.report}", values, as_json=as_json, quiet=quiet)


@search.command()
@click.argument("key")
@click.argument("query", metavar="QUERY.npy")
@click.option("--keys", required=True, metavar="FILE|DIR", help="The evaluation keys of KEY (heliograph keygen).")
@click.option("--url", default=None, metavar="URL", help="The server that serves the index.")
@click.option("--token-file", default=None, metavar="FILE", help="The file with the server's token, with --url.")
@click.option("--index", default=None, metavar="FILE", help="The index itself, to search here, without a server.")
@click.option("-k", default=10, show_default=True, type=click.IntRange(min=1), help="Hits of each query.")
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
    k: int,
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
    from heliograph.serving.remote.server import RemoteServer

    if (url is None) == (index is None) or (url is None) != (token_file is None):
        raise ProgramError("a query goes to a server or to an index", hint="--url and --token-file, or --index")
    client, _ = load_client(key, passphrase_file, insecure)
    evaluation, vectors = load_keys(keys), _array(query)
    if index is not None:
        with Server(Artifact.load(index), evaluation, allow_insecure=insecure) as server:
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
