"""Privacy accounting: bounds on epsilon and delta for compositions of mechanisms, floating-point error included.

`epsilon_at(composition, delta)` and `delta_at(composition, epsilon)` return a `Bracket`; `method` chooses the accountant
(auto, pld, exact, rdp, or an object of your own). docs/privacy_proofs.md has the proofs, P1 to P25.
"""

from __future__ import annotations

from heliograph.dp.accounting.accountant import Accountant, accountant, delta_at, epsilon_at, methods
from heliograph.dp.accounting.result import Bracket, Estimate, Tolerance

__all__ = ["Accountant", "Bracket", "Estimate", "Tolerance", "accountant", "delta_at", "epsilon_at", "methods"]
