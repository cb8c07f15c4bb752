// SPDX-License-Identifier: Apache-2.0

package spreader

import "testing"

// AttachedHost is a host with one peer on which spread is attached, and its configuration with 16 lanes. do runs a function in its
// network namespace. It skips the test where the kernel cannot spread.
func AttachedHost(t *testing.T) (host *Host, cfg Config, do func(func() error)) {
	t.Helper()
	here := newRig(t).here
	here.attach(here.config())
	cfg = here.config()
	cfg.Lanes = 16
	return here.host, cfg, here.do
}
