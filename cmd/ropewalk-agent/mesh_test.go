// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"
)

func TestFlagsForTrafficBetweenNodesAreChecked(t *testing.T) {
	for _, c := range []struct {
		args []string
		ok   bool
	}{
		{nil, true},
		{[]string{"--encrypt-nodes", "--node-cidr=192.0.2.1/24", "--node-cidr=2001:db8::/64", "--clear-port=192.0.2.10:8443", "--clear-node-label=a="}, true},
		{[]string{"--encrypt-nodes"}, false}, // a node could claim any address
		{[]string{"--encrypt-nodes", "--node-cidr=192.0.2.0"}, false},
		{[]string{"--encrypt-nodes", "--node-cidr=192.0.2.0/24", "--clear-port=8443"}, false},
		{[]string{"--node-cidr=192.0.2.0/24"}, false}, // nothing would be encrypted
		{[]string{"--clear-port=192.0.2.10:8443"}, false},
		{[]string{"--clear-node-label=a=b"}, false},
	} {
		var o options
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		addMeshFlags(f, &o)
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		got, err := o.nodeEncryption()
		if usage := (usageError{}); (err == nil) != c.ok || err != nil && !errors.As(err, &usage) {
			t.Errorf("%q: %v", c.args, err)
		}
		if c.ok && c.args != nil && (!got.Enabled || len(got.CIDRs) != 2 || got.CIDRs[0].String() != "192.0.2.0/24" || len(got.Clear) != 1 || len(got.Except) != 1) {
			t.Errorf("%q: got %+v", c.args, got)
		}
	}
}
