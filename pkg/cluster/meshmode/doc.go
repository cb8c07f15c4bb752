// SPDX-License-Identifier: Apache-2.0

// Package meshmode runs beside the reconciles of an agent in mode mesh. It has the
// proofs of package proof (Prover), and the guard of package ebpf/guard (Guard).
//
// A reconcile reports what it has applied (Prover.Applied, Guard.Set), and takes what was seen since
// (Prover.LeadsInto, Prover.Outcome). If that changed, the Prover requests another reconcile.
//
// Not for other programs: it may change without notice.
package meshmode
