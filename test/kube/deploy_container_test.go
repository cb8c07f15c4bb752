// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ropewalk/ropewalk/test/expect"
)

// An OCI runtime tests the manifests' rights: the capabilities, seccomp profile, mounts and read-only root that a kubelet
// requests of containerd. AppArmor, SELinux and the cgroup's device rules are not covered.

// manifest returns the objects of a file, below deploy/ or elsewhere.
func manifest(t testing.TB, path string) []*unstructured.Unstructured {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		var o unstructured.Unstructured
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: got error %v, want none", path, err)
		}
		if len(o.Object) > 0 {
			all = append(all, &o)
		}
	}
}

func kustomized(name string) string {
	return filepath.Join("..", "..", "deploy", "kustomize", name, "agent.yaml")
}

// agentPod returns the pod template of the agents in a manifest.
func agentPod(t testing.TB, path string) corev1.PodTemplateSpec {
	t.Helper()
	return podOf(t, path, "agent")
}

// podOf returns the template of the pods with a container in a manifest.
func podOf(t testing.TB, path, container string) corev1.PodTemplateSpec {
	t.Helper()
	for _, o := range manifest(t, path) {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		var ds appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &ds); err != nil {
			t.Fatal(err)
		}
		if ds.Spec.Template.Spec.Containers[0].Name == container {
			return ds.Spec.Template
		}
	}
	t.Fatalf("%s has no DaemonSet with the container %s", path, container)
	return corev1.PodTemplateSpec{}
}

// container is a pod's container, run as its manifest describes.
type container struct {
	n      *node
	id     string
	bundle string
	paths  map[string]string // substitutes for the node's paths
	log    *lockedBuffer
	cancel context.CancelFunc
	done   chan struct{}

	startupProbe []string // its command
}

// needRuntime skips the test without an OCI runtime.
func needRuntime(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("needs the OCI runtime crun, of Debian's package of that name")
	}
}

// paths returns the substitutes for the node's directories: all nodes are on one machine here.
func (n *node) paths(bpf string) map[string]string {
	dir := filepath.Dir(n.keys)
	return map[string]string{
		"/sys/fs/bpf": bpf, "/var/lib/ropewalk": filepath.Join(dir, "state"), "/var/run/wireguard": filepath.Join(dir, "sockets"),
		"/var/lib/ropewalk/engine": filepath.Join(dir, "state", "engine"), "/run/ropewalk": filepath.Join(dir, "run"), "/dev/net/tun": "/dev/net/tun",
	}
}

// run starts the agent's container of a manifest, with additional arguments.
func (n *node) run(path, bpf string, args ...string) *container {
	n.l.Helper()
	token := filepath.Join(n.l.dir, n.name)
	expect.NoError(n.l, os.WriteFile(token, []byte(n.l.nodeToken(n.name)), 0o600))
	u, err := url.Parse(n.l.cfg.Host)
	expect.NoError(n.l, err)
	return n.runPod(agentPod(n.l, path).Spec, bpf, append([]string{
		"--server", "https://" + apiAddr + ":6443", "--server-name", u.Hostname(), "--token-file", "/run/api/" + n.name,
		"--ca-file", "/run/api/ca", "--learn", "1s",
	}, args...)...)
}

// runEngine starts the engine's container of the mesh.
func (n *node) runEngine() *container {
	n.l.Helper()
	return n.runPod(podOf(n.l, kustomized("mesh"), "engine").Spec, "")
}

func (n *node) runPod(pod corev1.PodSpec, bpf string, args ...string) *container {
	n.l.Helper()
	c := &container{
		n: n, id: fmt.Sprintf("rw%s%s%s", n.l.net.Tag(), n.name, pod.Containers[0].Name), bundle: n.l.TempDir(), paths: n.paths(bpf),
		log: &lockedBuffer{}, done: make(chan struct{}),
	}
	if probe := pod.Containers[0].StartupProbe; probe != nil {
		c.startupProbe = probe.Exec.Command
	}
	spec, err := c.spec(&pod)
	expect.NoError(n.l, err)
	spec.Process.Args = append(spec.Process.Args, args...)
	expect.NoError(n.l, c.start(spec))
	n.l.Cleanup(func() {
		c.stop()
		if n.l.Failed() {
			n.l.Logf("%s: %s:\n%s", n.name, pod.Containers[0].Name, c.log)
		}
	})
	return c
}

func (c *container) start(spec *specs.Spec) error {
	agent, agentErr := agentBinary()
	ropewalk, err := ropewalkBinary()
	if err = errors.Join(agentErr, err); err != nil {
		return err
	}
	root := filepath.Join(c.bundle, "rootfs")
	for _, dir := range []string{"usr/bin", "proc", "sys", "dev", "run/api"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, bin := range []string{agent, ropewalk} { // of the same names as in the image
		if err := os.Link(bin, filepath.Join(root, "usr/bin", filepath.Base(bin))); err != nil {
			return err
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.bundle, "config.json"), text, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	cmd := c.n.host.Command(ctx, c.crun("run", "--bundle", c.bundle, c.id)...)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := cmd.Start(); err != nil {
		cancel()
		return err
	}
	go func() {
		_ = cmd.Wait()
		close(c.done)
	}()
	return nil
}

// crun needs no cgroups here, but probes for their version, and fails on hosts with both. It therefore sees none.
func (c *container) crun(args ...string) []string {
	return append([]string{
		"unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"`, "sh",
		"crun", "--root", filepath.Join(c.bundle, "crun"), "--cgroup-manager=disabled",
	}, args...)
}

// stop ends the agent as a kubelet does.
func (c *container) stop() {
	select {
	case <-c.done:
	default:
		kill := c.crun("kill", c.id, "TERM")
		if err := exec.Command(kill[0], kill[1:]...).Run(); err != nil {
			c.cancel()
		}
		<-c.done
	}
	c.cancel()
	remove := c.crun("delete", "--force", c.id)
	_ = exec.Command(remove[0], remove[1:]...).Run()
}

// spec returns the specification that containerd makes of a pod's only container with host network.
func (c *container) spec(pod *corev1.PodSpec) (*specs.Spec, error) {
	k := pod.Containers[0]
	env := c.env(&k)
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs", Readonly: *k.SecurityContext.ReadOnlyRootFilesystem},
		Process: &specs.Process{
			Cwd: "/", NoNewPrivileges: !*k.SecurityContext.AllowPrivilegeEscalation, Capabilities: capabilities(k.SecurityContext),
			User: specs.User{UID: uint32(*k.SecurityContext.RunAsUser), GID: uint32(*k.SecurityContext.RunAsGroup)},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, a := range append(append([]string{}, k.Command...), k.Args...) {
		s.Process.Args = append(s.Process.Args, expand(a, env))
	}
	for name, value := range env {
		s.Process.Env = append(s.Process.Env, name+"="+value)
	}
	if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		return nil, errors.New("the manifest asks for another seccomp profile than the runtime's")
	}
	if err := c.mount(s, pod, k.VolumeMounts); err != nil {
		return nil, err
	}
	var err error
	s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s)
	return s, err
}

// env returns the container's variables, with references to earlier ones expanded, as a kubelet does.
func (c *container) env(k *corev1.Container) map[string]string {
	env := map[string]string{"PATH": "/usr/bin"}
	for _, v := range k.Env {
		value := expand(v.Value, env)
		switch {
		case v.ValueFrom == nil:
		case v.ValueFrom.ResourceFieldRef != nil: // limits.memory, the only one
			value = strconv.FormatInt(k.Resources.Limits.Memory().Value(), 10)
		default:
			value = map[string]string{"spec.nodeName": c.n.name, "status.hostIP": c.n.addr.String()}[v.ValueFrom.FieldRef.FieldPath]
		}
		env[v.Name] = value
	}
	return env
}

func expand(text string, env map[string]string) string {
	for name, value := range env {
		text = strings.ReplaceAll(text, "$("+name+")", value)
	}
	return text
}

// capabilities returns the capabilities of root in a container: the added ones, none inheritable.
func capabilities(c *corev1.SecurityContext) *specs.LinuxCapabilities {
	var all []string
	for _, name := range c.Capabilities.Add {
		all = append(all, "CAP_"+string(name))
	}
	return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
}

func (c *container) mount(s *specs.Spec, pod *corev1.PodSpec, mounts []corev1.VolumeMount) error {
	s.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/run/api", Type: "bind", Source: c.n.l.dir, Options: []string{"rbind", "ro"}},
	}
	for _, m := range mounts {
		var host *corev1.HostPathVolumeSource
		for _, v := range pod.Volumes {
			if v.Name == m.Name {
				host = v.HostPath
			}
		}
		if host == nil {
			if err := c.mountEmptyDir(s, m.MountPath); err != nil {
				return err
			}
			continue
		}
		source := c.paths[host.Path]
		if *host.Type == corev1.HostPathDirectoryOrCreate {
			if err := os.MkdirAll(source, 0o755); err != nil { // the kubelet's mode
				return err
			}
		}
		at := filepath.Join(c.bundle, "rootfs", m.MountPath)
		if *host.Type == corev1.HostPathCharDev {
			at = filepath.Dir(at)
		}
		if !strings.HasPrefix(m.MountPath, "/dev/") {
			if err := os.MkdirAll(at, 0o755); err != nil {
				return err
			}
		}
		options := []string{"rbind", "rslave"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.MountPath, Type: "bind", Source: source, Options: options})
	}
	return nil
}

func (c *container) mountEmptyDir(s *specs.Spec, at string) error {
	s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev"}})
	return os.MkdirAll(filepath.Join(c.bundle, "rootfs", at), 0o755)
}

// probeStartup runs the startup probe of the manifest that the container was started from, as a kubelet does.
func (c *container) probeStartup() error {
	argv := c.crun(append([]string{"exec", c.id}, c.startupProbe...)...)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", c.startupProbe, err, out)
	}
	return nil
}
