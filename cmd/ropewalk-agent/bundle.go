// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/bundle"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/command"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
)

// bundleOptions are the flags of bundle.
type bundleOptions struct {
	kubectlOptions
	output   string
	timeout  time.Duration
	logLines int
	parallel int
}

// bundleSuffix is the suffix of the file's name. The name without it is the archive's directory.
const bundleSuffix = ".tar.gz"

// exitIncomplete is the exit code if files are missing.
const exitIncomplete = 3

func newBundleCmd() *cobra.Command {
	var o bundleOptions
	cmd := &cobra.Command{
		Use:   "bundle [NODE...]",
		Short: "Write objects, logs, metrics and checks of a cluster to one file",
		Long: "bundle writes a tar.gz for the report of a problem. It has ropewalk's objects, Nodes, the pods of agents and engines, their\n" +
			"logs, metrics, `ropewalk show` and `ropewalk doctor`, and the mesh's status. With node names or patterns (node-*) as arguments, pods of\n" +
			"other nodes are left out. It runs kubectl, and needs the right to read these objects and pods/log, and to create pods/exec and\n" +
			"pods/portforward. The file has no secrets: no Secrets and ConfigMaps, values of environment variables or annotations of others.\n" +
			"It has addresses, names and public keys.\n" +
			"Exit code: 0 complete, 3 files are missing (index.txt in the archive has the reasons), 1 an error, 2 wrong usage.",
		Example: "  kubectl ropewalk bundle\n  kubectl ropewalk bundle node-1 'gpu-*' --output report.tar.gz",
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "`file` to create (default: ropewalk-bundle-TIME"+bundleSuffix+" in the current directory)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for each answer; a node that gives none is asked for nothing more")
	f.IntVar(&o.logLines, "log-lines", 10_000, "number of lines of each log")
	f.IntVar(&o.parallel, "parallel", 8, "number of nodes that are asked at a time")
	return cmd
}

func (o *bundleOptions) run(cmd *cobra.Command, nodes []string) error {
	if o.output == "" {
		o.output = "ropewalk-bundle-" + time.Now().UTC().Format("20060102T150405Z") + bundleSuffix
	}
	read := command.Options{Kubeconfig: o.kubeconfig, Context: o.context, Server: o.server, Timeout: o.timeout, Nodes: nodes}
	switch err := read.Check(); {
	case err != nil:
		return usageError{err}
	case o.logLines < 1 || o.parallel < 1:
		return usageError{errors.New("--log-lines and --parallel: want 1 or more")}
	case !strings.HasSuffix(o.output, bundleSuffix):
		return usageError{fmt.Errorf("--output: want a name that ends with %s", bundleSuffix)}
	}
	kubectl, err := o.command()
	if err != nil {
		return err
	}
	log := cmd.ErrOrStderr()
	var s bundle.Summary
	err = create(o.output, func(w io.Writer) error {
		s, err = bundle.Write(cmd.Context(), w, bundle.Config{
			Kubectl: kubectl, Namespace: o.namespace, Wanted: read.NodeMatcher(), Timeout: o.timeout, LogLines: o.logLines, Parallel: o.parallel,
			Name: strings.TrimSuffix(filepath.Base(o.output), bundleSuffix), Header: "kubectl-ropewalk " + version + ", " + time.Now().UTC().Format(time.RFC3339) + "\n",
			Files: meshFiles(read), Progress: func(p bundle.Progress) { printProgress(log, p) },
		})
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files\n", o.output, s.Files-s.Missing)
	if s.Missing > 0 {
		fmt.Fprintf(log, "%s: incomplete, %d files are missing or cut off; index.txt in it has the reasons\n", pluginName, s.Missing)
		return command.VerdictError{Code: exitIncomplete}
	}
	return nil
}

func printProgress(w io.Writer, p bundle.Progress) {
	node, missing := p.Node, ""
	if node == "" {
		node = "objects of the cluster"
	}
	if p.Missing > 0 {
		missing = fmt.Sprintf(", %d missing", p.Missing)
	}
	fmt.Fprintf(w, "%s: %d files%s (%d of %d nodes)\n", node, p.Files-p.Missing, missing, p.Done, p.Nodes)
}

// create writes a new file, which only its owner can read. It leaves none behind if that fails.
func create(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// meshFiles are the outputs of `mesh status` and `mesh check`.
func meshFiles(read command.Options) []bundle.File {
	output := func(write func(io.Writer, *view.Mesh) error) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			m, err := loadMesh(ctx, read)
			if err != nil {
				return nil, err
			}
			var b bytes.Buffer
			err = write(&b, m)
			return b.Bytes(), err
		}
	}
	return []bundle.File{
		{Name: "status.txt", Make: output(func(w io.Writer, m *view.Mesh) error { return m.WriteText(w, view.Style{}) })},
		{Name: "status.json", Make: output(func(w io.Writer, m *view.Mesh) error { return m.WriteJSON(w, view.StatusDocument) })},
	}
}
