"""The expression language for compositions: text to `Composition` and back (`Composition.text`)."""

from __future__ import annotations

from heliograph.dp.language.parse import parse

__all__ = ["parse"]
