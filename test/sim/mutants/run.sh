#!/bin/bash
# run.sh [SEEDS [PATCH...]]: apply each patch of this directory, or those named, to a copy of the repository, and print the number of seeds
# after which the simulator finds the fault, at most SEEDS, as a table in Markdown. Fails if one is not found. The first line of a patch
# describes the fault.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
seeds=${1:-400}
patches=("${@:2}")
[ ${#patches[@]} -gt 0 ] || patches=("$here"/*.patch)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard -z -- go.mod go.sum '*.go' '*.s' '*.o' '*.json' 'test/sim' | xargs -0 cp --parents -t "$copy"
status=0
echo '| fault | patch | seeds | invariant |'
echo '| --- | --- | --- | --- |'
for patch in "${patches[@]}"; do
  cd "$copy"
  patch --quiet --no-backup-if-mismatch -p1 <"$patch"
  (cd test/sim && "${GO:-go}" test -c -o "$copy/sim.test" . && "$copy/sim.test" -test.run TestSeeds -test.timeout 30m -stop -shrinks 0 -seeds "$seeds" >"$copy/log" 2>&1) || true
  patch --quiet --no-backup-if-mismatch -R -p1 <"$patch"
  seed=$(grep -oE 'seed=[0-9]+' "$copy/log" | head -1 | cut -d= -f2 || true)
  kind=$(grep -oE '^ +[a-z_]+\.go:[0-9]+: [a-z]+' "$copy/log" | head -1 | awk '{print $NF}' || true)
  if [ -z "$seed" ]; then status=1; fi
  echo "| $(head -1 "$patch") | $(basename "$patch" .patch) | ${seed:-not found in $seeds} | ${kind:-crash} |"
done
exit $status
