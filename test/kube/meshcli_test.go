// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ropewalk/ropewalk/test/expect"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// kubeconfig writes a kubeconfig for a token.
func (a *api) kubeconfig(token string) string {
	a.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: a.cfg.Host, CertificateAuthorityData: a.cfg.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["lab"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "lab"
	path := filepath.Join(a.TempDir(), "config")
	expect.NoError(a, clientcmd.WriteToFile(*c, path))
	return path
}

// tokenOf returns a token of an account in the namespace default.
func (a *api) tokenOf(account string) string {
	a.Helper()
	accounts := a.clients.CoreV1().ServiceAccounts("default")
	made, err := accounts.Create(a.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"}}, metav1.CreateOptions{})
	expect.NoError(a, err)
	tr, err := accounts.CreateToken(a.Context(), made.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	expect.NoError(a, err)
	return tr.Status.Token
}

// meshCLI runs the command and expects an exit code.
func (a *api) meshCLI(want int, args ...string) (out string) {
	a.Helper()
	out, got := a.runMesh(args...)
	if got != want {
		a.Errorf("mesh %q ends with %d, want %d:\n%s", args, got, want, out)
	}
	return out
}

// runMesh runs `ropewalk-agent mesh`, which `ropewalk mesh` calls, with an empty environment.
func (a *api) runMesh(args ...string) (out string, code int) {
	a.Helper()
	bin, err := agentBinary()
	expect.NoError(a, err)
	cmd := exec.CommandContext(a.Context(), bin, append([]string{"mesh"}, args...)...)
	cmd.Env = []string{"HOME=" + a.TempDir()}
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return b.String(), e.ExitCode()
	}
	expect.NoError(a, err)
	return b.String(), 0
}

// createNode creates a node with a status.
func (a *api) createNode(i int, status map[string]any) {
	a.Helper()
	name := fmt.Sprintf("node-%d", i)
	pods := fmt.Sprintf("10.244.%d.0/24", i)
	nodes := a.clients.CoreV1().Nodes()
	n, err := nodes.Create(a.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
	}, metav1.CreateOptions{})
	expect.NoError(a, err)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i)}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n, err = nodes.UpdateStatus(a.Context(), n, metav1.UpdateOptions{})
	expect.NoError(a, err)
	if status == nil {
		return
	}
	expect.NoError(a, publish(a.Context(), a.dynamic, n, status))
}

// well returns the status of an agent without problems.
func well(i, peers int) map[string]any {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 32))
	return map[string]any{
		"observedGeneration": int64(1), "mode": "mesh", "publicKey": key, "keyGeneration": int64(1), "mtu": int64(1440), "agentVersion": "test",
		"endpoints": []any{fmt.Sprintf("192.0.2.%d:51820", i)}, "podCIDRs": []any{fmt.Sprintf("10.244.%d.0/24", i)},
		"peers": int64(peers), "spreadsTo": int64(peers),
		"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Reconciled", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}},
	}
}

func TestMeshCommandPassesHealthyCluster(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	admin := "--kubeconfig=" + l.kubeconfig(l.cfg.BearerToken)
	expect.EventuallyNoError(l, "no problems found", func() error {
		if out, code := l.runMesh("check", admin); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out := l.meshCLI(0, "status", admin); strings.Count(out, "1/1") != 2 {
		t.Error(out)
	}

	// Only the agent knows that the node's pods are outside of the cluster's prefixes. The command reads that from its status.
	n := l.nodes[1]
	l.setMesh(map[string]any{"cleartext": "Auto", "podCIDRs": []any{"10.0.0.0/16"}})
	expect.EventuallyNoError(l, "the agent's note to be found", func() error {
		out, code := l.runMesh("check", admin)
		if code != 4 || !strings.Contains(out, n.name+": its agent warns: its pod prefix "+n.pods.String()+" is not used: it is outside of the cluster's pod prefixes") {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
}

func TestMeshCommandReportsProblems(t *testing.T) {
	a := startAPI(t)
	admin := "--kubeconfig=" + a.kubeconfig(a.cfg.BearerToken)
	if out := a.meshCLI(3, "check", admin); !strings.Contains(out, "the cluster has no nodes") {
		t.Error(out)
	}
	for i := 1; i <= 3; i++ {
		a.createNode(i, well(i, 2))
	}
	if out := a.meshCLI(0, "check", admin); out != "no problems found\n" {
		t.Error(out)
	}
	if out := a.meshCLI(0, "status", admin); strings.Count(out, "\nnode-") != 3 {
		t.Error(out)
	}
	if out := a.meshCLI(0, "status", admin, "node-1"); strings.Count(out, "\nnode-") != 1 {
		t.Error(out)
	}

	large := well(4, 3)
	large["mtu"] = int64(8941)
	a.createNode(4, large)
	if out := a.meshCLI(4, "check", admin); !strings.Contains(out, "node-4: its MTU is 8941") || !strings.Contains(out, "it has 2 peers, want 3") {
		t.Error(out)
	}
	a.meshCLI(3, "check", admin, "--strict")
	silent := well(5, 4)
	silent["stalePeers"] = map[string]any{"count": int64(1), "nodes": []any{"node-1"}}
	a.createNode(5, silent)
	keyless := well(6, 4)
	delete(keyless, "publicKey")
	a.createNode(6, keyless)
	a.createNode(7, nil)
	a.findsAll(admin)

	// The agents' own account may read. Without the rights, the error explains what is missing.
	a.meshCLI(3, "check", "--kubeconfig="+a.kubeconfig(a.token()))
	for token, want := range map[string]string{a.tokenOf("nobody"): "needs the right to list", "wrong": "rejects these credentials"} {
		if out := a.meshCLI(1, "status", "--kubeconfig="+a.kubeconfig(token)); !strings.Contains(out, want) {
			t.Errorf("got %s, want %q in it", out, want)
		}
	}
	a.refuses(admin)
}

// findsAll expects each problem in each output format.
func (a *api) findsAll(admin string) {
	a.Helper()
	out := a.meshCLI(0, "status", admin, "node-5")
	for _, want := range []string{"lab, ", "node-5: no answer to its handshakes from node-1"} {
		if !strings.Contains(out, want) {
			a.Errorf("no %q:\n%s", want, out)
		}
	}
	var d struct {
		APIVersion, Kind string
		Nodes            []struct{ Name string }
		Findings         []struct {
			Check, Severity string
			Nodes           []string
		}
	}
	expect.NoError(a, json.Unmarshal([]byte(a.meshCLI(0, "status", admin, "--json")), &d))
	found := map[string]string{}
	for _, f := range d.Findings {
		found[f.Check] += " " + strings.Join(f.Nodes, " ")
	}
	for check, want := range map[string]string{"handshakes": "node-5", "key": "node-6", "agent": "node-7", "mtu": "node-4"} {
		if !strings.Contains(found[check], want) {
			a.Errorf("%s: found %q, want %s", check, found[check], want)
		}
	}
	if d.APIVersion != "ropewalk/v1" || d.Kind != "MeshStatus" || len(d.Nodes) != 7 {
		a.Errorf("got %+v, want APIVersion \"ropewalk/v1\", Kind \"MeshStatus\", len(Nodes) 7", d)
	}
}

// refuses expects helpful errors.
func (a *api) refuses(admin string) {
	a.Helper()
	for want, args := range map[string][]string{
		"no kubeconfig found":                 {"status"},
		"no such file or directory":           {"status", "--kubeconfig=/absent"},
		`context "absent" does not exist`:     {"status", admin, "--context=absent"},
		"no node of the cluster matches gone": {"status", admin, "gone"},
		"connection refused":                  {"status", admin, "--server=https://127.0.0.1:1"},
	} {
		if out := a.meshCLI(1, args...); !strings.Contains(out, want) {
			a.Errorf("got %s, want %q in it", out, want)
		}
	}
	a.meshCLI(2, "status", admin, "--format=png")
	expect.NoError(a, a.dynamic.Resource(definitions).Delete(a.Context(), "ropewalknodes.ropewalk.io", metav1.DeleteOptions{}))
	expect.EventuallyNoError(a, "the CRD to be deleted", func() error {
		_, err := a.dynamic.Resource(rwnodes).List(a.Context(), metav1.ListOptions{})
		if err == nil {
			return errors.New("it still exists")
		}
		return nil
	})
	if out := a.meshCLI(1, "status", admin); !strings.Contains(out, "does not have the CRDs") {
		a.Error(out)
	}
}
