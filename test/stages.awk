# SPDX-License-Identifier: Apache-2.0
# Makes one table of what `go test -bench` says of the stages: the best of all runs of each benchmark that reports
# ns/packet (test/cost). All lines other than benchmark results go to stderr, so that failures are visible.

function metric(unit,    i) {
	for (i = 3; i < NF; i += 2) if ($(i + 1) == unit) return $i
	return ""
}

/^pkg: / { sub(/.*\/pkg\//, ""); package = $0; next }
/^Benchmark/ && metric("ns/packet") != "" {
	name = substr($1, 10)
	sub(/-[0-9]+$/, "", name)
	key = package " " name
	if (!(key in best)) { order[++n] = key; packages[key] = package; names[key] = name }
	else if (best[key] <= metric("ns/packet") + 0) next
	best[key] = metric("ns/packet") + 0
	rate[key] = metric("MB/s")
	if (metric("B/cycle") metric("cycles/packet") != "") counted = 1
	cycle[key] = metric("B/cycle") != "" ? metric("B/cycle") " B" : metric("cycles/packet")
	next
}
/^(Benchmark|goos: |goarch: |PASS|ok |=== RUN|--- PASS|$)/ { next }
/^cpu: / { cpu = $0; next }
/_test.go:[0-9]+: (features|cipher): / { sub(/.*_test.go:[0-9]+: /, ""); machine = machine $0 "\n"; next }
{ print > "/dev/stderr" }

END {
	print cpu
	printf "%s", machine
	printf "%-18s %-20s %-38s %10s %8s %10s\n", "package", "stage", "shape", "ns/packet", "GB/s", "cycles"
	for (i = 1; i <= n; i++) {
		key = order[i]
		stage = names[key]; shape = ""
		if (at = index(stage, "/")) { shape = substr(stage, at + 1); stage = substr(stage, 1, at - 1) }
		gsub(/_/, " ", shape)
		gsub(/\//, ", ", shape)
		printf "%-18s %-20s %-38s %10.2f %8s %10s\n", packages[key], stage, shape, best[key], \
			rate[key] == "" ? "" : sprintf("%.2f", rate[key] / 1000), cycle[key]
	}
	if (!counted) print "This machine counts no cycles: bytes per cycle are GB/s divided by GHz."
}
