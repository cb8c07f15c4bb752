// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/google/nftables"
)

func TestPlaintextFilterIsInstalledOnce(t *testing.T) {
	inNamespace(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddTable(&nftables.Table{Name: "foreign", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			return err
		}
		for _, step := range []struct {
			what    string
			tunnel  string
			wanted  bool
			changes int
		}{
			{"nothing to remove", "tunnel", false, 0},
			{"installed", "tunnel", true, 1},
			{"again", "tunnel", true, 0},
			{"for a tunnel of another name", "other", true, 1},
			{"removed", "other", false, 1},
			{"removed twice", "other", false, 0},
		} {
			if n, err := setPlaintextFilter(step.tunnel, step.wanted); err != nil || n != step.changes {
				t.Errorf("%s: %d changes, %v, want %d", step.what, n, err, step.changes)
			}
			if n := plaintextDropped(); n != 0 {
				t.Errorf("%s: %d packets", step.what, n)
			}
		}
		tables, err := c.ListTables()
		if len(tables) != 1 || tables[0].Name != "foreign" {
			t.Errorf("left: %v", tables)
		}
		return err
	})
}
