#!/usr/bin/env bash
# Runs a submission in a checkout of its suite's repository, whose harness stays as it is, and keeps the harness' own results:
#
#     run.sh ml_inference ../suite 3 --seed 3
#     run.sh fetch_by_similarity ../suite 1 --count_only --num_runs 3 --seed 3
#
# HELIOGRAPH_PYTHON names the interpreter that has Heliograph and what the harness imports (default: this checkout's .venv).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
workload="$1" suite="$(cd "$2" && pwd)"
shift 2
[ -d "$here/$workload/submission" ] || { echo "there is no submission for $workload" >&2; exit 1; }
[ -f "$suite/harness/run_submission.py" ] || { echo "$suite is no checkout of a suite" >&2; exit 1; }
python="$(command -v "${HELIOGRAPH_PYTHON:-$here/../../.venv/bin/python}")"
export HELIOGRAPH_PYTHON="$python"
rm -rf "${suite:?}/scripts" "$suite/measurements"
# What was built stays: networks and artifacts take minutes.
mkdir -p "$suite/submission"
find "$suite/submission" -mindepth 1 -maxdepth 1 ! -name build ! -name '*.npz' -exec rm -rf {} +
cp -r "$here/$workload/scripts" "$suite/"
cp -r "$here/$workload/submission/." "$suite/submission/"
(cd "$suite" && "$python" harness/run_submission.py "$@")
mkdir -p "$here/results/$workload"
cp -r "$suite/measurements/." "$here/results/$workload/"
(cd "$suite" && git rev-parse HEAD) > "$here/results/$workload/commit"
