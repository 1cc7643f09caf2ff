#!/usr/bin/env bash
# Nothing is built: OpenFHE comes with its wheel, Heliograph with `pip install 'heliograph[run,torch]'`.
set -euo pipefail
"${HELIOGRAPH_PYTHON:-python3}" -c "import heliograph, openfhe"
