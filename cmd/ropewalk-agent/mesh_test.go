// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
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

func TestLocationLabelIsChecked(t *testing.T) {
	for label, ok := range map[string]bool{
		"": true, "ropewalk.io/location": true, "site": true, "topology.kubernetes.io/region": true,
		"topology.kubernetes.io/region ": false, "site=east": false, "/site": false, "a/b/c": false,
	} {
		o := options{cfg: agent.Config{Node: "a"}, ports: spread.DefaultPorts.String(), server: apiOptions{url: "https://192.0.2.254"}}
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		addMeshFlags(f, &o)
		expect.NoError(t, f.Parse([]string{"--location-label=" + label}))
		cfg, err := o.config(slog.New(slog.DiscardHandler))
		if usage := (usageError{}); (err == nil) != ok || err != nil && !errors.As(err, &usage) {
			t.Errorf("%q: %v", label, err)
		}
		if ok && cfg.LocationLabel != label {
			t.Errorf("got the label %q, want %q", cfg.LocationLabel, label)
		}
	}
}
