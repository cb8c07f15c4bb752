// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/docs/page"
	"github.com/ropewalk/ropewalk/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk, wireguardGo)) }

var (
	ropewalk    = program.Ropewalk()
	wireguardGo = &program.Program{Env: "WIREGUARD_GO_BIN", Package: "golang.zx2c4.com/wireguard"}
)

// root is the root directory of the repository.
var root = page.Root(2)

func pages(t *testing.T) []*page.Page {
	t.Helper()
	all, err := page.ReadAll(root)
	if err != nil || len(all) < 10 {
		t.Fatalf("%d pages: %v", len(all), err)
	}
	return all
}
