"""The bill: what an artifact costs and how wrong it can be, before anything is encrypted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Report:
    """Predicted figures of one artifact; `to_dict()` is the JSON, `str()` the table.

    `predicted_max_abs_error` is against the original network on the calibration samples (or random ones): the error of
    the polynomials, seen there, plus that of encryption, simulated. `scheme_error` is the latter alone.
    """

    values: Mapping[str, Any]
    measured: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        out = dict(self.values)
        if self.measured:
            out["measured"] = dict(self.measured)
        return out

    def rows(self) -> list[tuple[str, str]]:
        """The table, line by line."""
        v = self.values
        if v["security_bits"] is None:
            security = "INSECURE: no security was asked for; for tests only"
        else:
            security = f"{v['security_bits']} bits classical (log PQ {v['log_pq']:.1f} of at most {v['max_log_pq']})"
        rows = [
            ("security", security),
            ("secret", v["secret_distribution"]),
            ("ring", f"N = {v['ring_dim']}, {v['slots']} slots, {v['digits']} key-switching digits"),
            (
                "chain",
                f"{v['levels']} levels: first modulus {v['first_mod_bits']} bits, scale {v['scale_bits']} bits, "
                f"{v['special_primes']} special primes",
            ),
            ("depth", str(v["depth"])),
            ("rotations", f"{v['rotations']} with {v['rotation_keys']} keys"),
            ("key switches", str(v["key_switches"])),
            ("ciphertext products", str(v["ciphertext_products"])),
            ("plaintext products", str(v["plaintext_products"])),
            ("evaluation keys", _bytes(v["evaluation_key_bytes"])),
            ("ciphertexts", f"{_bytes(v['ciphertext_bytes'])} in, {_bytes(v['output_bytes'])} out"),
            ("memory", f"server {_bytes(v['server_peak_bytes'])}, client {_bytes(v['client_peak_bytes'])}"),
            ("time", f"{v['predicted_ms']:.0f} ms an evaluation (costs: {v['costs']})"),
            (
                "error",
                f"{v['predicted_max_abs_error']:.2g} against the original on {v['error_samples']} samples, of which "
                f"encryption {v['scheme_error']:.2g} (outputs reach {v['output_magnitude']:.3g})",
            ),
        ]
        for entry in v["ranges"]:
            rows.append(
                (
                    f"range {entry['layer'] or entry['function']}",
                    f"[{entry['low']:.4g}, {entry['high']:.4g}] {entry['source']}, degree {entry['degree']} "
                    f"({entry['method']}), error at most {entry['max_error']:.2g}",
                )
            )
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{self.values['name']}: the bill", *(f"  {name:<{width}}  {text}" for name, text in rows)]
        for name, value in self.measured.items():
            lines.append(f"  {'measured ' + name:<{width}}  {value}")
        return "\n".join(lines)
