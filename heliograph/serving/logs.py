"""Structured logs: one JSON object per line on standard error, with names, sizes and times; never data or tokens."""

from __future__ import annotations

import json
import logging
import sys
import time

_LOGGER = logging.getLogger("heliograph.serving")
_UVICORN = logging.getLogger("uvicorn")
_WARNINGS = logging.getLogger("py.warnings")
Value = str | int | float | bool | None


def log(event: str, **fields: Value) -> None:
    """Write one line with the time, the event and the fields."""
    _LOGGER.info(json.dumps({"time": round(time.time(), 3), "event": event, **fields}))


class _Foreign(logging.Formatter):
    """Formats libraries' log records like our own lines; of an exception only the class."""

    def format(self, record: logging.LogRecord) -> str:
        kind = None if not record.exc_info or record.exc_info[0] is None else record.exc_info[0].__name__
        fields = {"event": record.name, "level": record.levelname, "text": record.getMessage()[:300], "kind": kind}
        return json.dumps({"time": round(record.created, 3), **fields})


def log_to_stderr() -> None:
    """Write the lines, uvicorn's warnings and Python's to standard error; without this call the first two go nowhere."""
    foreign = _Foreign()
    kinds = ((_LOGGER, logging.INFO, logging.Formatter("%(message)s")), (_UVICORN, logging.WARNING, foreign),
             (_WARNINGS, logging.WARNING, foreign))  # fmt: skip
    logging.captureWarnings(True)
    for logger, level, form in kinds:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(form)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
