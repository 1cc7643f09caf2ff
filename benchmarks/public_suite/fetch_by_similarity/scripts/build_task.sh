#!/usr/bin/env bash
# Makes the executables that the harness runs, and the artifacts. HELIOGRAPH_PYTHON names the interpreter.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$(command -v "${HELIOGRAPH_PYTHON:-python3}")"
mkdir -p "$root/submission/build"
for step in client_preprocess_dataset client_key_generation client_encode_encrypt_db server_preprocess_dataset \
  client_preprocess_query client_encode_encrypt_query server_encrypted_compute client_decrypt_decode client_postprocess; do
  printf '#!/usr/bin/env bash\nexec "%s" "%s/submission/steps.py" %s "$@"\n' "$python" "$root" "$step" \
    > "$root/submission/build/$step"
  chmod +x "$root/submission/build/$step"
done
cd "$root" && "$python" submission/steps.py build
