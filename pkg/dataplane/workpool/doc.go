// SPDX-License-Identifier: Apache-2.0

// Package workpool holds worker goroutines that seal and open trains for lanes.
// One flow is one lane, and one core cannot seal or open all of a fast flow.
//
// Package engine calls it: each direction of a lane has a JobRing, submits jobs to it and collects them in order of
// submission. A lane never depends on a worker: when it needs the result of a job that no worker has claimed, it runs the job itself.
// A pool that is too small, busy or asleep therefore costs throughput at worst.
//
// A worker pays only on an idle core. Moving a train between caches takes half as long as sealing
// it, and a wakeup takes a third. A lane therefore submits jobs only after a persistent backlog.
// Workers run under SCHED_BATCH, which preempts nobody, and yield their core while they poll.
// Each job ring counts the results of its jobs. It backs off when workers do not run them in
// time, wait for their cores, or delay the lane. A backoff takes 10 ms at first, and doubles up
// to 1 s.
//
// A lane may also offer one job outside the order of its ring, the next receive call (offer.go).
//
// Start with jobring.go, then worker.go (the goroutines) and backoff.go (the decision whether to submit).
//
// Not for other programs: it may change without notice.
package workpool
