// SPDX-License-Identifier: Apache-2.0

// Package attack sends what an attacker may send to one end of a tunnel, in network namespaces that it creates.
//
// In `make test` each attack is a few thousand packets. The daemon must count them under the
// reason that attacks lists, and the tunnel must carry traffic afterwards. With -attack (make
// attack) each attack lasts for that time beside TCP through the tunnel. The generator and the
// attacked host share this machine's CPUs. So each attack is compared with the same packets to a
// port without a listener. The difference is the price that the daemon pays. It is small beside
// the differences from one second to the next. So -rounds repeats the comparison. The table shows
// the mean price with its standard error, and the CPU time and context switches of the daemon.
//
// Begin reading in attacks_test.go.
package attack
