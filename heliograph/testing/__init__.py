"""The suite that a backend of the server, and a client's cryptography, must pass (docs/backends.md).

It calls the tested implementation and compares with Python integers; it needs neither pytest nor another backend.
"""

from heliograph.testing.bench import Check as Check
from heliograph.testing.cryptor import arithmetic_checks as arithmetic_checks
from heliograph.testing.cryptor import cryptor_checks as cryptor_checks
from heliograph.testing.hostile import hostile_checks as hostile_checks
from heliograph.testing.primitives import primitive_checks as primitive_checks
from heliograph.testing.rings import RINGS as RINGS
