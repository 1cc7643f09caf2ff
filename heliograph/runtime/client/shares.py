"""The number of results that one key has shared; the noise of `decrypt(share=True)` hides a limited number of them.

The count is kept in a file beside the key file, `NAME.shared`, under a lock. It is written whole before a result is
returned: a kill loses a result, never a count. For a key that was not saved, the count is in memory, and its file later
starts with that number.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from heliograph.artifact.container import Container, pack, read_file
from heliograph.ckks.sharing import SHARE_RESULTS
from heliograph.errors import SecurityError, WireError
from heliograph.files import locked_folder, write_file

KIND = "the number of results shared under a key"
VERSION = 1
_MAX_BYTES = 1 << 16
_MAX_COUNT = 1 << 30


class Shares:
    """The results shared under one client's key; `count` is the number known here."""

    def __init__(self, client: str, count: int = 0) -> None:
        self.client = client
        self.count = count
        self._files: list[Path] = []
        self._lock = threading.Lock()

    def beside(self, key_file: str | Path) -> None:
        """Count beside this key file too, from now on."""
        path = Path(os.path.realpath(key_file))
        file = path.with_name(f"{path.name}.shared")
        if file not in self._files:
            self._files.append(file)
            self._files.sort()

    def take(self) -> None:
        """Count one more result; a SecurityError if the key has already shared as many as the noise allows."""
        with self._lock, contextlib.ExitStack() as stack:
            for folder in sorted({file.parent for file in self._files}):
                try:
                    stack.enter_context(locked_folder(folder, wait=True))
                except OSError as error:
                    raise WireError(
                        f"what is shared cannot be counted in {folder}",
                        why=error.strerror or str(error),
                        hint="load the key again",
                    ) from None
            count = max([self.count, *(self._read(file) for file in self._files)])
            if count >= SHARE_RESULTS:
                raise SecurityError(
                    f"this key has shared {count} results, and the noise is computed for {SHARE_RESULTS}",
                    where="decrypt(share=True)",
                    why="more of them would tell more about the secret key than was promised",
                    hint="make a new client, with new keys, to share more results",
                )
            for file in self._files:
                fields = {"client": self.client, "shared": count + 1}
                write_file(file, pack(Container(KIND, VERSION, fields)), private=True)
            self.count = count + 1

    def _read(self, file: Path) -> int:
        if not file.exists():
            return 0
        fields = read_file(file, KIND, VERSION, _MAX_BYTES).fields
        count = fields.get("shared")
        if set(fields) != {"client", "shared"} or type(count) is not int or not 0 <= count <= _MAX_COUNT:
            raise WireError(f"{file}: its fields are not those of {KIND}")
        # The count of a replaced key does not matter.
        return count if fields["client"] == self.client else 0
