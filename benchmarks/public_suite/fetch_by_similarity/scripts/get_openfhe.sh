#!/usr/bin/env bash
# Nothing is built, and OpenFHE is not needed: Heliograph comes with `pip install heliograph`.
set -euo pipefail
"${HELIOGRAPH_PYTHON:-python3}" -c "import heliograph"
