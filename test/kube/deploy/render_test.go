// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/release"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

func spread() Release {
	return Release{Name: spreadChart, Namespace: namespace, Chart: spreadChart}
}

func mesh() Release { return Release{Name: meshChart, Namespace: namespace, Chart: meshChart} }

func agentContainer(t *testing.T, values Values) (pod, container map[string]any) {
	t.Helper()
	return containerOf(t, values, spreadChart)
}

func containerOf(t *testing.T, values Values, app string) (pod, container map[string]any) {
	t.Helper()
	r := mesh()
	if app == spreadChart {
		r = spread()
	}
	ds := oneOf(t, render(t, r, values), "DaemonSet", app)
	pod = at(t, ds, "spec", "template", "spec").(map[string]any)
	return pod, at(t, pod, "containers", 0).(map[string]any)
}

func TestPodsHaveOnlyTheirRights(t *testing.T) {
	for _, c := range []struct {
		name    string
		app     string
		values  Values
		caps    string
		volumes string
	}{
		{"spread", spreadChart, Values{}, "[NET_ADMIN BPF PERFMON]", "[bpf state]"},
		{"mesh", meshChart, Values{}, "[NET_ADMIN BPF]", "[bpf state sockets]"},
		{"cleanup of spread", spreadChart, Values{"cleanup": Values{"enabled": true}}, "[NET_ADMIN BPF]", "[bpf state]"},
		{"cleanup of mesh", meshChart, Values{"cleanup": Values{"enabled": true}}, "[NET_ADMIN BPF]", "[bpf state sockets]"},
		{"capabilities set in the values", spreadChart, Values{"capabilities": []any{"NET_ADMIN"}}, "[NET_ADMIN]", "[bpf state]"},
		{"engine", "ropewalk-engine", Values{}, "[NET_ADMIN BPF NET_RAW SYS_NICE]", "[tun sockets run config keep]"},
		{
			"engine with more capabilities", "ropewalk-engine",
			Values{"engine": Values{"capabilities": []any{"SYS_RESOURCE", "NET_BIND_SERVICE"}}},
			"[NET_ADMIN BPF NET_RAW SYS_NICE SYS_RESOURCE NET_BIND_SERVICE]", "[tun sockets run config keep]",
		},
	} {
		pod, container := containerOf(t, c.values, c.app)
		security := at(t, container, "securityContext")
		if got := fmt.Sprint(at(t, security, "capabilities", "add")); got != c.caps {
			t.Errorf("%s: got capabilities %s, want %s", c.name, got, c.caps)
		}
		if fmt.Sprint(at(t, security, "capabilities", "drop")) != "[ALL]" || at(t, security, "privileged") != false ||
			at(t, security, "allowPrivilegeEscalation") != false || at(t, security, "readOnlyRootFilesystem") != true ||
			at(t, pod, "securityContext", "seccompProfile", "type") != "RuntimeDefault" {
			t.Errorf("%s: got %v", c.name, security)
		}
		var volumes, mounts []string
		for _, v := range at(t, pod, "volumes").([]any) {
			volumes = append(volumes, fmt.Sprint(at(t, v, "name")))
		}
		for _, v := range at(t, container, "volumeMounts").([]any) {
			mounts = append(mounts, fmt.Sprint(at(t, v, "name")))
		}
		if fmt.Sprint(volumes) != c.volumes || !slices.Equal(volumes, mounts) {
			t.Errorf("%s: got volumes %v, mounts %v, want %s for both", c.name, volumes, mounts, c.volumes)
		}
		if limits := at(t, container, "resources", "limits").(map[string]any); limits["cpu"] != nil {
			t.Errorf("%s: got a CPU limit %v, want none", c.name, limits["cpu"])
		}
	}
}

func TestImageNameIsRequired(t *testing.T) {
	_, err := Render(chartPath(spreadChart), spread(), Values{})
	if err == nil || !strings.Contains(err.Error(), "set image.repository") {
		t.Errorf("without image.repository: %v", err)
	}
}

func TestMeshRefusesUnknownPods(t *testing.T) {
	nodes, pods := []any{"192.0.2.0/24"}, []any{"10.244.0.0/16"}
	for _, c := range []struct {
		mesh Values
		ok   bool
	}{
		{Values{"nodeEncryption": Values{"enabled": true}, "podCIDRs": pods}, false},
		{Values{"nodeEncryption": Values{"enabled": true, "nodeCIDRs": nodes}}, false},
		{Values{"nodeEncryption": Values{"enabled": true, "nodeCIDRs": nodes}, "podCIDRs": pods}, true},
		{Values{"nodeEncryption": Values{"nodeCIDRs": nodes}}, true},
		{Values{"cleartext": "Never"}, false},
		{Values{"cleartext": "Never", "podCIDRs": pods}, true},
	} {
		_, err := Render(chartPath(meshChart), mesh(), withImage(Values{"mesh": c.mesh}))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "CIDRs") {
			t.Errorf("%v: got %v", c.mesh, err)
		}
	}
}

// TestPodsAvoidVirtualNodes: they tolerate all taints, and would stay pending there, or run without the node's network.
func TestPodsAvoidVirtualNodes(t *testing.T) {
	for _, app := range []string{meshChart, "ropewalk-engine"} {
		pod, _ := containerOf(t, Values{}, app)
		got := fmt.Sprint(at(t, pod, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", 0, "matchExpressions"))
		if want := "[map[key:type operator:NotIn values:[virtual-kubelet]] map[key:eks.amazonaws.com/compute-type operator:NotIn values:[fargate]]]"; got != want {
			t.Errorf("%s: got %s, want %s", app, got, want)
		}
	}
}

// TestMeshSettingsRestartNoPod: agents follow the RopewalkMesh.
func TestMeshSettingsRestartNoPod(t *testing.T) {
	pods := func(settings Values) (all string) {
		text := render(t, mesh(), Values{"mesh": settings})
		for _, app := range []string{meshChart, "ropewalk-engine"} {
			all += fmt.Sprint(at(t, oneOf(t, text, "DaemonSet", app), "spec"))
		}
		return all
	}
	changed := everything()["mesh"].(Values)
	if before, after := pods(Values{}), pods(changed); before != after {
		t.Errorf("got\n%s\nwant\n%s", after, before)
	}
	spec := fmt.Sprint(at(t, one(t, render(t, mesh(), everything()), "RopewalkMesh"), "spec"))
	for name := range changed {
		if !strings.Contains(spec, name+":") {
			t.Errorf("%s is not in the RopewalkMesh: %s", name, spec)
		}
	}
}

// TestEngineHasNoToken: an attacker in the process that faces the network has no rights in the cluster.
func TestEngineHasNoToken(t *testing.T) {
	text := render(t, mesh(), Values{})
	pod, c := containerOf(t, Values{}, "ropewalk-engine")
	account := oneOf(t, text, "ServiceAccount", "ropewalk-engine")
	if pod["automountServiceAccountToken"] != false || account["automountServiceAccountToken"] != false || pod["serviceAccountName"] != at(t, account, "metadata", "name") {
		t.Errorf("pod %v, account %v", pod, account)
	}
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		if got := fmt.Sprint(at(t, one(t, text, kind), "subjects")); strings.Contains(got, "engine") {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if args := fmt.Sprint(c["args"]); !strings.HasPrefix(args, "[run --keep ") || !strings.HasSuffix(args, " ropewalk0]") {
		t.Errorf("arguments %s", args)
	}
}

// TestEngineRunsWhereTunnelsMayBe: during a cleanup, the tunnels of nodes that are in the mesh go on.
func TestEngineRunsWhereTunnelsMayBe(t *testing.T) {
	off, on := Values{"enabled": false}, Values{"enabled": true}
	for _, c := range []struct {
		values Values
		want   bool
	}{
		{Values{}, true},
		{Values{"engine": off}, false},
		{Values{"cleanup": on}, true},
	} {
		if got := strings.Contains(render(t, mesh(), c.values), "kind: DaemonSet\nmetadata:\n  name: ropewalk-engine"); got != c.want {
			t.Errorf("%v: got %v", c.values, got)
		}
	}
}

// TestChartVersionLeavesPinnedEngines: a release of the chart replaces the agents, and engines only with another image.
func TestChartVersionLeavesPinnedEngines(t *testing.T) {
	spec := func(dir, app string) string {
		manifests, err := Render(dir, mesh(), withImage(Values{"engine": Values{"image": Values{"tag": "1"}}}))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(at(t, oneOf(t, stream(manifests), "DaemonSet", app), "spec"))
	}
	newer := filepath.Join(t.TempDir(), meshChart)
	if err := os.CopyFS(newer, os.DirFS(chartPath(meshChart))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(newer, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^(version|appVersion): .*$`).ReplaceAll(text, []byte("$1: 9.9.9"))
	if err := os.WriteFile(filepath.Join(newer, "Chart.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for app, same := range map[string]bool{meshChart: false, "ropewalk-engine": true} {
		if before, after := spec(chartPath(meshChart), app), spec(newer, app); (before == after) != same {
			t.Errorf("%s: got\n%s\nwith the older chart\n%s\nthe same: want %v", app, after, before, same)
		}
	}
}

// otherValues has a value other than the default for each of the chart of mesh, without those of the engine. Where several values depend on each other, one
// changes all of them.
func otherValues() map[string]Values {
	on := Values{"enabled": true}
	return map[string]Values{
		"image.repository": {"image": Values{"repository": "x"}}, "image.tag": {"image": Values{"tag": "2"}},
		"image.digest":     {"image": Values{"digest": "sha256:" + strings.Repeat("0", 64)}},
		"image.pullPolicy": {"image": Values{"pullPolicy": "Always"}}, "imagePullSecrets": {"imagePullSecrets": []any{Values{"name": "pull"}}},
		"spreadPorts": {"spreadPorts": "50000-50999"},
		"tunnel":      {"tunnel": "wg7"}, "podCIDRSource": {"podCIDRSource": "cilium"}, "stateDir": {"stateDir": "/srv/ropewalk"},
		"startupTaint":   {"startupTaint": true},
		"mesh.cleartext": {"mesh": Values{"cleartext": "Always"}}, "mesh.postQuantum": {"mesh": Values{"postQuantum": "Required"}}, "mesh.podCIDRs": {"mesh": Values{"podCIDRs": []any{"10.244.0.0/16"}}},
		"mesh.serviceCIDRs": {"mesh": Values{"serviceCIDRs": []any{"10.96.0.0/12"}}}, "mesh.nodeEncryption": {"mesh": Values{"nodeEncryption": Values{"clearPorts": []any{"192.0.2.10:8443"}}}},
		"mesh.exclude": {"mesh": Values{"exclude": Values{"nodeNames": []any{"a"}}}}, "mesh.pools": {"mesh": Values{"pools": []any{Values{"mtu": 1300}}}},
		"apiServer.host": {"apiServer": Values{"host": "192.0.2.1"}}, "apiServer.port": {"apiServer": Values{"port": 443}},
		"logLevel": {"logLevel": "debug"}, "extraArgs": {"extraArgs": []any{"--learn=5s"}}, "extraEnv": {"extraEnv": []any{Values{"name": "A"}}},
		"metrics.enabled": {"metrics": on}, "metrics.port": {"metrics": Values{"port": 9999}},
		"resources": {"resources": Values{"limits": Values{"memory": "1Gi"}}}, "capabilities": {"capabilities": []any{"NET_ADMIN"}},
		"seLinuxOptions": {"seLinuxOptions": Values{"level": "s0"}}, "scc": {"scc": "on"}, "policy": {"policy": Values{"enabled": false}},
		"serviceAccount.name": {"serviceAccount": Values{"name": "x"}}, "serviceAccount.annotations": {"serviceAccount": Values{"annotations": Values{"a": "b"}}},
		"priorityClassName": {"priorityClassName": "x"}, "nodeSelector": {"nodeSelector": Values{"a": "b"}}, "tolerations": {"tolerations": []any{}},
		"affinity": {"affinity": Values{"podAffinity": Values{}}}, "updateStrategy": {"updateStrategy": "OnDelete"}, "maxUnavailable": {"maxUnavailable": 1},
		"podAnnotations": {"podAnnotations": Values{"a": "b"}}, "podLabels": {"podLabels": Values{"a": "b"}}, "extraContainers": {"extraContainers": []any{Values{"name": "x"}}},
		"uninstallGuard": {"uninstallGuard": Values{"enabled": false}}, "cleanup": {"cleanup": on},
	}
}

// TestDocsNameValuesOfEngines compares the values that replace engines with docs/kubernetes/operate.md.
func TestDocsNameValuesOfEngines(t *testing.T) {
	pod := func(values Values) string {
		all := Values{"engine": Values{"image": Values{"tag": "1"}}}
		maps.Copy(all, values)
		return fmt.Sprint(at(t, oneOf(t, render(t, mesh(), all), "DaemonSet", "ropewalk-engine"), "spec", "template"))
	}
	docs, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes", "operate.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(docs), "in their pods, or one of these:")
	list, _, _ = strings.Cut(list, "\n- **")
	before := pod(nil)
	for name, values := range otherValues() {
		image, _ := values["image"].(Values)
		if image != nil && image["repository"] == nil {
			image["repository"] = "ropewalk-agent"
		}
		if got, want := pod(values) != before, strings.Contains(list, "`"+name+"`"); got != want {
			t.Errorf("%s: changes the engines' pods: %v, in docs/kubernetes/operate.md: %v", name, got, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(chartPath(meshChart), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := readValues(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		group, _, _ := strings.Cut(v.path, ".")
		parent := v.path[:max(strings.LastIndex(v.path, "."), 0)]
		if other := otherValues(); other[v.path] == nil && other[parent] == nil && other[group] == nil && !slices.Contains([]string{"nameOverride", "engine"}, group) &&
			!strings.HasPrefix(v.path, "metrics.") {
			t.Errorf("%s is not tried", v.path)
		}
	}
}

func TestNameOverrideNamesAllObjects(t *testing.T) {
	text := render(t, spread(), Values{"nameOverride": "tunnel"})
	all, err := objects(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if got := at(t, o, "metadata", "name"); got != "tunnel" {
			t.Errorf("%v is named %v", o["kind"], got)
		}
	}
}

// TestNamesAreStrings has names that YAML reads as numbers or as true.
func TestNamesAreStrings(t *testing.T) {
	for _, name := range []string{"123", "true", "1e5"} {
		hooks, manifests, err := renderAll(chartPath(spreadChart), Release{Name: name, Namespace: namespace}, withImage(Values{}))
		if err != nil {
			t.Fatal(err)
		}
		text := stream(manifests)
		for _, h := range hooks {
			text += "---\n" + h.Manifest
		}
		all, err := objects(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if got := at(t, o, "metadata", "labels", "app.kubernetes.io/instance"); got != name {
				t.Errorf("%v: the label is %T(%v), want %q", o["kind"], got, got, name)
			}
		}
		if _, err := Render(chartPath(spreadChart), spread(), withImage(Values{"nameOverride": name})); err == nil {
			t.Errorf("nameOverride %s is accepted", name)
		}
	}
}

// TestEventsAreCreatedInOneNamespace: with the right for all namespaces, an attacker with an agent's token could forge any object's Events.
func TestEventsAreCreatedInOneNamespace(t *testing.T) {
	text := render(t, spread(), Values{})
	if rules := fmt.Sprint(at(t, one(t, text, "ClusterRole"), "rules")); strings.Contains(rules, "events") {
		t.Errorf("Events in all namespaces: %s", rules)
	}
	for _, kind := range []string{"Role", "RoleBinding"} {
		if got := at(t, one(t, text, kind), "metadata", "namespace"); got != "default" {
			t.Errorf("the %s is in the namespace %v", kind, got)
		}
	}
}

func TestUpdateStrategyOnDeleteHasNoRollingUpdate(t *testing.T) {
	for strategy, rolling := range map[string]bool{"OnDelete": false, "RollingUpdate": true} {
		ds := one(t, render(t, spread(), Values{"updateStrategy": strategy}), "DaemonSet")
		if got := at(t, ds, "spec", "updateStrategy", "rollingUpdate") != nil; got != rolling {
			t.Errorf("%s: got %v", strategy, at(t, ds, "spec", "updateStrategy"))
		}
	}
}

// TestEnginesAreReplacedWithSurge: a pod that declared ports of the host's network would not fit beside another.
func TestEnginesAreReplacedWithSurge(t *testing.T) {
	for _, c := range []struct {
		name, app string
		values    Values
		want      string
	}{
		{"engine", "ropewalk-engine", Values{"metrics": Values{"enabled": true}}, "map[maxSurge:10% maxUnavailable:0]"},
		{"engine on request", "ropewalk-engine", Values{"engine": Values{"updateStrategy": "OnDelete"}}, "<nil>"},
		{"agent of mesh", meshChart, Values{}, "map[maxUnavailable:10%]"},
		{"agent of spread", spreadChart, Values{}, "map[maxUnavailable:10%]"},
		{"cleanup, also with a node that is down", meshChart, Values{"cleanup": Values{"enabled": true}}, "map[maxUnavailable:100%]"},
	} {
		r := mesh()
		if c.app == spreadChart {
			r = spread()
		}
		ds := oneOf(t, render(t, r, c.values), "DaemonSet", c.app)
		if got := fmt.Sprint(at(t, ds, "spec", "updateStrategy", "rollingUpdate")); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		if at(t, ds, "spec", "template", "spec", "containers", 0, "ports") != nil {
			t.Errorf("%s: the pods declare ports", c.name)
		}
	}
}

func TestExtraEnvIsAdded(t *testing.T) {
	_, c := agentContainer(t, Values{"extraEnv": []any{Values{"name": "GODEBUG", "value": "x=1"}}})
	env := at(t, c, "env").([]any)
	if last := env[len(env)-1]; at(t, last, "name") != "GODEBUG" || at(t, last, "value") != "x=1" {
		t.Error(env)
	}
}

func TestMetricsListenOnLoopbackByDefault(t *testing.T) {
	listen := func(c map[string]any) (value string) {
		for _, e := range at(t, c, "env").([]any) {
			if at(t, e, "name") == "LISTEN" {
				value = at(t, e, "value").(string)
			}
		}
		return value
	}
	_, c := agentContainer(t, Values{})
	if listen(c) != "127.0.0.1:9567" || c["ports"] != nil || at(t, c, "livenessProbe", "httpGet", "host") != "127.0.0.1" {
		t.Error(listen(c), c["ports"], c["livenessProbe"])
	}
	_, c = agentContainer(t, Values{"metrics": Values{"enabled": true, "port": 9999}})
	if listen(c) != "[$(HOST_IP)]:9999" || c["ports"] != nil || at(t, c, "livenessProbe", "httpGet", "host") != nil {
		t.Error(listen(c), c["ports"], c["livenessProbe"])
	}
}

func TestPerPeerMetricsAreOptIn(t *testing.T) {
	for value, want := range map[string]bool{"off": false, "auto": true} {
		_, c := containerOf(t, Values{"engine": Values{"metricsPerPeer": value}}, "ropewalk-engine")
		if got := strings.Contains(fmt.Sprint(at(t, c, "args")), "--metrics-per-peer=auto"); got != want {
			t.Errorf("metricsPerPeer %s: got args %v, want --metrics-per-peer=auto in them: %v", value, at(t, c, "args"), want)
		}
	}
}

func TestPolicyMatchesAgentsAccount(t *testing.T) {
	for want, values := range map[string]Values{
		"system:serviceaccount:elsewhere:other-ropewalk-spread": {},
		"system:serviceaccount:elsewhere:given":                 {"serviceAccount": Values{"name": "given"}},
	} {
		text := render(t, Release{Name: "other", Namespace: "elsewhere", Chart: spreadChart}, values)
		policy := one(t, text, "ValidatingAdmissionPolicy")
		expression := at(t, policy, "spec", "matchConditions", 0, "expression").(string)
		if expression != `request.userInfo.username == "`+want+`"` {
			t.Errorf("got %s, want %s", expression, want)
		}
		account := one(t, text, "ServiceAccount")
		name := fmt.Sprintf("system:serviceaccount:%s:%s", at(t, account, "metadata", "namespace"), at(t, account, "metadata", "name"))
		pod := at(t, one(t, text, "DaemonSet"), "spec", "template", "spec")
		if name != want || !strings.HasSuffix(want, ":"+at(t, pod, "serviceAccountName").(string)) {
			t.Errorf("got account %s, want %s", name, want)
		}
		binding := one(t, text, "ValidatingAdmissionPolicyBinding")
		if at(t, binding, "spec", "policyName") != at(t, policy, "metadata", "name") {
			t.Error("the binding names another policy")
		}
	}
}

func TestCleanupReplacesAgentPods(t *testing.T) {
	agent := one(t, render(t, spread(), Values{}), "DaemonSet")
	cleanup := one(t, render(t, spread(), Values{"cleanup": Values{"enabled": true, "keys": true}}), "DaemonSet")
	for _, path := range [][]any{{"metadata", "name"}, {"spec", "selector"}} {
		if a, b := fmt.Sprint(at(t, agent, path...)), fmt.Sprint(at(t, cleanup, path...)); a != b {
			t.Errorf("%v: got %s for the agent and %s for the cleanup, want the same, so that one replaces the other", path, a, b)
		}
	}
	args := fmt.Sprint(at(t, cleanup, "spec", "template", "spec", "containers", 0, "args"))
	if !strings.HasPrefix(args, "[cleanup --stay --keys ") || strings.Contains(args, "--mode") {
		t.Error(args)
	}
}

func TestCRDSurvivesUninstall(t *testing.T) {
	for keep, want := range map[bool]any{true: "keep", false: nil} {
		manifests, err := Render(chartPath(crdsChart), spread(), Values{"keep": keep})
		if err != nil {
			t.Fatal(err)
		}
		crds, err := objects(stream(manifests))
		if err != nil || len(crds) != 4 {
			t.Fatalf("%d definitions, %v", len(crds), err)
		}
		for _, crd := range crds {
			if crd["kind"] != "CustomResourceDefinition" || at(t, crd, "metadata", "annotations", "helm.sh/resource-policy") != want {
				t.Error(keep, crd["kind"], at(t, crd, "metadata", "annotations"))
			}
		}
	}
}

// TestSCCGrantsWhatPodsRequest compares OpenShift's constraints with the pods.
func TestSCCGrantsWhatPodsRequest(t *testing.T) {
	for _, c := range []struct {
		app    string
		values Values
	}{
		{spreadChart, Values{"scc": "on"}},
		{meshChart, Values{"scc": "on"}},
		{"ropewalk-engine", Values{"scc": "on"}},
		{"ropewalk-engine", Values{"scc": "on", "engine": Values{"capabilities": []any{"SYS_RESOURCE"}}}},
		{spreadChart, Values{"scc": "on", "cleanup": Values{"enabled": true}}},
	} {
		values, r := c.values, mesh()
		if c.app == spreadChart {
			r = spread()
		}
		scc := oneOf(t, render(t, r, values), "SecurityContextConstraints", c.app)
		pod, container := containerOf(t, values, c.app)
		for _, c := range []struct{ what, granted, requested any }{
			{"capabilities", at(t, scc, "allowedCapabilities"), at(t, container, "securityContext", "capabilities", "add")},
			{"dropped", at(t, scc, "requiredDropCapabilities"), at(t, container, "securityContext", "capabilities", "drop")},
			{"SELinux", at(t, scc, "seLinuxContext", "type"), "RunAsAny"},
			{"host network", at(t, scc, "allowHostNetwork"), at(t, pod, "hostNetwork")},
			{"volumes", at(t, scc, "volumes"), volumeTypes(t, pod)},
			{"account", at(t, scc, "users"), []any{"system:serviceaccount:" + namespace + ":" + at(t, pod, "serviceAccountName").(string)}},
		} {
			if fmt.Sprint(c.granted) != fmt.Sprint(c.requested) {
				t.Errorf("%v: %v: granted %v, requested %v", values, c.what, c.granted, c.requested)
			}
		}
		if at(t, scc, "allowPrivilegedContainer") != false {
			t.Error("privileged containers are allowed")
		}
	}
	if strings.Contains(render(t, spread(), Values{}), "SecurityContextConstraints") {
		t.Error("constraints without OpenShift")
	}
}

// volumeTypes returns the types of a pod's volumes, and of the one with its token if it has one.
func volumeTypes(t *testing.T, pod map[string]any) []string {
	t.Helper()
	types := []string{"projected"}
	if pod["automountServiceAccountToken"] == false {
		types = nil
	}
	for _, v := range at(t, pod, "volumes").([]any) {
		for key := range v.(map[string]any) {
			if key != "name" {
				types = append(types, key)
			}
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// TestSCCMustRunAsNamesLevel: OpenShift compares all options with the pod's, and takes a missing level from the namespace's annotation
// (apiserver-library-go, sccmatching.CreateProviderFromConstraint and selinux.mustRunAs). It would refuse all pods.
func TestSCCMustRunAsNamesLevel(t *testing.T) {
	options := Values{"type": "spc_t", "level": "s0"}
	for _, c := range []struct {
		values Values
		want   string
	}{
		{Values{"scc": "on"}, "map[type:RunAsAny]"},
		{Values{"scc": "on", "seLinuxOptions": Values{"type": nil}}, "map[type:RunAsAny]"},
		{Values{"scc": "on", "seLinuxOptions": options}, "map[seLinuxOptions:map[level:s0 type:spc_t] type:MustRunAs]"},
	} {
		scc := one(t, render(t, spread(), c.values), "SecurityContextConstraints")
		if got := fmt.Sprint(at(t, scc, "seLinuxContext")); got != c.want {
			t.Errorf("%v: got %s, want %s", c.values, got, c.want)
		}
	}
}

// TestUninstallGuardRunsBeforeDeletion: at other times, kubectl and kustomize would have to run it.
func TestUninstallGuardRunsBeforeDeletion(t *testing.T) {
	for enabled, want := range map[bool]int{true: 1, false: 0} {
		hooks, _, err := renderAll(chartPath(spreadChart), spread(), withImage(Values{
			"uninstallGuard": Values{"enabled": enabled}, "apiServer": Values{"host": "192.0.2.1"}, "imagePullSecrets": []any{Values{"name": "pull"}},
		}))
		if err != nil || len(hooks) != want {
			t.Errorf("enabled %v: %d hooks, %v", enabled, len(hooks), err)
		}
		for _, h := range hooks {
			if !slices.Equal(h.Events, []release.HookEvent{release.HookPreDelete}) || !strings.Contains(h.Manifest, "uninstall-check") {
				t.Errorf("%v:\n%s", h.Events, h.Manifest)
			}
			job := &batchv1.Job{}
			if err := yaml.UnmarshalStrict([]byte(h.Manifest), job); err != nil || job.Spec.TTLSecondsAfterFinished == nil {
				t.Errorf("%v, or it stays after a failure:\n%s", err, h.Manifest)
			}
		}
	}
}
