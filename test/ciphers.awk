# SPDX-License-Identifier: Apache-2.0
# Adds a column to the table behind <!-- bench-ciphers --> in a Markdown file: how many times as fast as x/crypto this processor seals and
# opens with the fastest implementation. awk -v name=PROCESSOR -f test/ciphers.awk BENCHMARKS FILE, where BENCHMARKS is the output
# of BenchmarkSets. Rows that BenchmarkSets does not have get no value.

FNR == NR && /^BenchmarkSets\// {
	split($1, part, "/")
	sub(/-[0-9]+$/, "", part[3])
	fastest = 1 # x/crypto itself
	for (i = 3; i < NF; i += 2) if ($(i + 1) ~ /-times$/ && $i + 0 > fastest) fastest = $i + 0
	times[part[2] " " part[3]] = sprintf("%.2f", fastest)
	next
}
FNR == NR { next }
/^<!-- bench-ciphers -->$/ { inside = 1; print; next }
inside && /^\| messages / { print $0 " " name " |"; next }
inside && /^\| --- / { print $0 " --- |"; next }
inside && /^\| [0-9]/ {
	set = $2 "x" $4
	print $0 " " ((set " seal") in times ? times[set " seal"] " / " times[set " open"] : "") " |"
	next
}
inside && !/^$/ { inside = 0 }
{ print }
