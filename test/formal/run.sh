#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: verify the symbolic models of post-quantum exchanges, and compare each result with the one that the model's line "Expected" has.
#
# A letter and a digit stand for each query: c confidentiality, a authentication; 0 no attack within the bound of one session, 1 an attack. Models good_
# hold, but for what a classical session carries. Models bad_ have one fault each, which must be found. Models half_ have a fault that symbolic models do
# not find: vectors and tables of states do. Without verifpal (VERIFPAL, default verifpal) nothing is verified, and the script says so.
set -euo pipefail
cd "$(dirname "$0")"
verifpal=${VERIFPAL:-verifpal}
command -v "$verifpal" >/dev/null || { echo "SKIPPED: no verifpal here: cargo install verifpal --version 1.6.7 --ignore-rust-version"; exit 0; }
status=0
for model in *.vp; do
  want=$(grep -oE -m1 'Expected: [ac0-9]+' "$model" | cut -d' ' -f2)
  got=$(timeout 600 "$verifpal" verify "$model" --sessions 1 --result-code --quiet 2>/dev/null | tail -1) || true
  echo "$model: ${got:-unfinished}, expected $want"
  [ "$got" = "$want" ] || status=1
done
exit $status
