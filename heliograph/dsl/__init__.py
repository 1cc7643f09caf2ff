"""The language: text to programs and back, checking and formatting."""

from heliograph.dsl.parse import parse
from heliograph.dsl.print import to_language, write_language

__all__ = ["parse", "to_language", "write_language"]
