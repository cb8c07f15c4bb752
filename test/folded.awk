# SPDX-License-Identifier: Apache-2.0
# Makes of folded stacks (inferno-collapse-perf) a table: how much of all samples each stage of ropewalk takes. A stack
# belongs to the first stage here that it passes through; docs/dev/profiling.md describes the stages.

function stage(stack) {
	if (stack !~ /^ropewalk[;-]/) {
		sub(/[;-].*/, "", stack)
		return stack == "swapper" ? "idle" : "others: " (stack == "iperf3" ? stack : "the rest")
	}
	if (stack ~ /(SealTrain|Poly1305Seal|chachapoly.*[sS]eal)/) return "seal"
	if (stack ~ /(OpenTrain|Poly1305Open|chachapoly.*[oO]pen)/) return "open, replay window"
	if (stack ~ /;tun_chr_read_iter/) return "TUN read"
	if (stack ~ /;tun_chr_write_iter/) return "TUN write, and the host's stack behind it"
	if (stack ~ /;__sys_sendm/) return "send, and the cable behind it"
	if (stack ~ /;(__sys_recvm|do_recvmmsg)/) return "receive"
	if (stack ~ /offload\.\(\*Merger\)/) return "merge, checksums verified"
	if (stack ~ /offload\.\(\*Train\)|\(\*Transmitter\)\.enqueueTrain/) return "parse and split, checksums"
	if (stack ~ /;runtime\.(mstart|mcall|morestack|entersyscall|reentersyscall|exitsyscall)/)
		return "Go runtime: scheduler, poller, around system calls"
	if (stack ~ /;(do_syscall_64|el0_svc|syscall\.)/) return "system call entry and exit, others"
	if (stack ~ /ropewalk\/pkg\//) return "the rest of the lanes: lookup, batching"
	return "ropewalk, not attributed"
}

{
	n = $NF
	sub(/ [0-9]+$/, "")
	samples[s = stage($0)] += n
	total += n
	if ($0 ~ /^ropewalk[;-]/) { own += n; if ($0 ~ /(do_syscall_64|asm_|el0_|entry_SYSCALL)/) kernel += n }
}

END {
	if (!total) {
		print "folded.awk: no samples: want what inferno-collapse-perf prints" > "/dev/stderr"
		exit 1
	}
	for (s in samples)
		printf "%6.1f %%  %6s    %s\n", 100 * samples[s] / total, \
			s ~ /^(others|idle)/ ? "" : sprintf("%.1f %%", 100 * samples[s] / own), s | "sort -rn"
	close("sort -rn")
	if (own) printf "%6.1f %%  100.0 %%    ropewalk, all of it; %.0f %% of that in the kernel\n", 100 * own / total, 100 * kernel / own
}
