#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the licences of all modules linked into a program. Usage: notices.sh PROGRAM, in the module from which it was built.
set -eu
go=${GO:-go}
echo "ropewalk: https://github.com/ropewalk/ropewalk"
echo
cat "${LICENSE:-LICENSE}"
goroot=$($go env GOROOT)
modules=$($go version -m "$1" | awk '$1 == "dep" { print $2 }')
for m in std $modules; do
	dir=$goroot
	[ "$m" = std ] || dir=$($go list -m -f '{{.Dir}}' "$m")
	files=$(find -L "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | LC_ALL=C sort)
	[ -n "$files" ] || { echo "$m has no licence file" >&2; exit 1; }
	for f in $files; do
		printf '\n==== %s: %s\n\n' "$m" "${f##*/}"
		cat "$f"
	done
done
