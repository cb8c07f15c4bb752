// SPDX-License-Identifier: Apache-2.0

// Package sim runs whole devices against a simulated network, under the virtual time of testing/synctest, and checks invariants.
//
// A schedule is one simulation: hosts, network conditions, and a list of events. Events are
// traffic, roaming, a NAT that forgets, death and restart of a process, an upgrade in place, steps
// of clocks, and hostile datagrams. It is made from a seed and can be written to a file. The
// reference model knows each inner packet that was sent, and the wire is observed. See the list of
// invariants in docs/dev/reliability.md.
//
// A schedule replays in part. The events, the keys, the random numbers of each device and the
// decisions of the network are functions of the seed. The network decides about a datagram by its
// identity (sender, receiver, type, session and counter), not by its order among all datagrams.
// The order in which goroutines run at the same instant of virtual time is Go's, and differs from
// run to run. So the same schedule may take another course where two goroutines race at one
// instant, such as two handshakes that cross. The invariants hold in each of these courses. A
// fault that needs such a race may need several runs (-count) of its schedule to appear.
//
// Start reading at sim_test.go (the tests and flags), then run_test.go (one simulation). `make sim SEEDS=1000` runs more seeds than the
// tests do, and `make sim-mutants` shows that the simulator finds the faults in mutants/.
package sim
