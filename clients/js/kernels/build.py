"""Build the package's WebAssembly from kernels.c: `pip install ziglang==0.17.1`, then `python clients/js/kernels/build.py`.

The same compiler gives the same bytes on every system. wasm/digests.js has their digests, which the package checks before it
runs them. With --check nothing is written, and the exit code says whether the files are those that the source gives.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MADE = {"plain.wasm": (), "simd.wasm": ("-msimd128",)}
FLAGS = (
    "-target",
    "wasm32-freestanding",
    "-O3",
    "-std=c11",
    "-Wall",
    "-Werror",
    "-nostdlib",
    "-ffp-contract=off",
    "-fno-builtin",
    "-Wl,--no-entry,-z,stack-size=65536,--export=__heap_base,--strip-all",
)


def made(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / name
        command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, *MADE[name], "kernels.c", "-o", str(target)]
        subprocess.run(command, check=True, cwd=HERE)
        return target.read_bytes()


def main() -> int:
    same, digests = True, ""
    for name in MADE:
        target, data = HERE.parent / "wasm" / name, made(name)
        if "--check" in sys.argv[1:]:
            same &= target.read_bytes() == data
        else:
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
        digests += f'  "{name}": "{hashlib.sha256(data).hexdigest()}",\n'
        print(f"{name}: {len(data)} bytes")
    about = "/** The SHA-256 of the WebAssembly files; kernels/build.py writes them. */"
    text = f"{about}\nexport const DIGESTS = {{\n{digests}}};\n"
    if "--check" in sys.argv[1:]:
        same &= (HERE.parent / "wasm" / "digests.js").read_text() == text
    else:
        (HERE.parent / "wasm" / "digests.js").write_text(text)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
