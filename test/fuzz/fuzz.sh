#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh TIME [HOURS]: run each fuzz target for TIME, 10s or a count such as 1000x, from its corpus in test/fuzz/corpus.
#
# With HOURS it goes round until they have passed, and keeps new inputs in build/fuzz for the next run. Without, it keeps nothing, and
# leaves out targets whose input goes through another implementation's goroutines or the kernel: their failures are not reproducible.
# ONLY is a regular expression of targets, such as pkg/protocol/.*/FuzzParse. A failing input ends the run. It is in testdata/fuzz
# beside the target, where go test runs it from then on.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=$1 hours=${2:-}
work=build/fuzz
[ -n "$hours" ] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; }
mkdir -p "$work" && work=$(realpath "$work")

targets() {
  git grep --untracked -oE '^func Fuzz\w+' -- 'pkg/*_test.go' 'test/*_test.go' | sed -E 's#/[^/]*:func #/#' | grep -E -- "${ONLY:-.}" |
    if [ -n "$hours" ]; then cat; else grep -vE 'FuzzSameAnswers$|MatchesKernel$'; fi | sort
}

# unpack TARGET: its archive, whose files are inputs in Go's format, into the engine's directory.
unpack() {
  mkdir -p "$work/$1"
  [ ! -e "test/fuzz/corpus/$1.txtar" ] || awk -v dir="$work/$1" '/^-- .* --$/ {f = dir "/" $2; next} {print >f}' "test/fuzz/corpus/$1.txtar"
}

# passed: whether a failed run has only hit the end of a limit in time, which the engine may take for a failure (go.dev/issue/75804).
passed() {
  [[ $time != *x ]] && grep -q 'context deadline exceeded' "$work/log" && ! grep -q 'Failing input written to' "$work/log"
}

# fuzz TARGET. A run that executed nothing has failed.
fuzz() {
  local dir=${1%/*} name=${1##*/} execs
  if [ "$dir" != "${built:-}" ]; then
    rm -f "$work/fuzz.test"
    go test -c -fuzz Fuzz -o "$work/fuzz.test" "./$dir"
    built=$dir
  fi
  unpack "$1"
  if ! (cd "$dir" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x -test.fuzzcachedir "$work/$dir") >"$work/log" 2>&1 &&
    ! passed || ! execs=$(grep -oE 'execs: [0-9]+' "$work/log"); then
    cat "$work/log"
    echo "$1 fails"
    return 1
  fi
  echo "$1: ${execs##*$'\n'}"
}

mapfile -t all < <(targets)
[ ${#all[@]} -gt 0 ] || { echo "no target matches ${ONLY:-}, or only such as need HOURS"; exit 1; }
end=$((SECONDS + ${hours:-0} * 3600))
while :; do
  for target in "${all[@]}"; do
    fuzz "$target"
    [ -z "$hours" ] || [ $SECONDS -lt $end ] || exit 0
  done
  [ -n "$hours" ] || exit 0
done
