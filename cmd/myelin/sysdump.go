package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"myelin/agent"
	"myelin/internal/durable"
	"myelin/status/sysdump"
)

type sysdumpFlags struct {
	clusterFlags

	socket   string
	file     string
	nodeOnly bool
	rows     uint32
	patience time.Duration
}

func sysdumpCommand() *cobra.Command {
	f := &sysdumpFlags{}
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Collect diagnostics for a bug report in one archive, without secrets",
		Long: "Writes a tar.gz with the status, configuration, tables, BPF maps, drop counters, metrics and log of " +
			"agents, findings of doctor, facts of kernels and devices, " +
			"and the objects of Kubernetes, of all nodes of a cluster that a kubeconfig or --lab leads to, or else " +
			"of this " +
			"node. Secrets are taken out: keys, tokens, passwords, the content of Secret objects. " +
			"What could not be collected is listed in failures.txt of the archive. Look through it before you " +
			"publish it: " +
			"names, labels and addresses of the cluster are in it.",
		Example: "  myelin sysdump\n  myelin sysdump --node-only -f - | tar -tz",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	socketFlag(cmd, &f.socket)
	f.add(cmd)
	cmd.Flags().
		StringVarP(&f.file, "file", "f", "",
			"the archive; - is the standard output (default myelin-sysdump-TIME.tar.gz)")
	cmd.Flags().BoolVar(&f.nodeOnly, "node-only", false, "this node alone, and no API server")
	cmd.Flags().Uint32Var(&f.rows, "rows", 20000, "rows of each table and map at most; 0: all")
	cmd.Flags().DurationVar(&f.patience, "timeout", 5*time.Minute, "how long to collect at most")
	return cmd
}

func (f *sysdumpFlags) run(cmd *cobra.Command) error {
	ctx, stop := untilSignal(cmd)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	now := time.Now().UTC()
	root := "myelin-sysdump-" + now.Format("20060102-150405")
	if f.file == "" {
		f.file = root + ".tar.gz"
	}
	var out bytes.Buffer
	archive := sysdump.NewArchive(&out, root, now, sysdump.NewRedactor())
	if err := f.collect(ctx, cmd.ErrOrStderr(), archive); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if f.file == "-" {
		_, err := out.WriteTo(cmd.OutOrStdout())
		return err
	}
	if err := durable.Write(f.file, out.Bytes()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	for _, line := range archive.Failures() {
		fmt.Fprintln(cmd.ErrOrStderr(), "not collected:", line)
	}
	fmt.Fprintln(cmd.OutOrStdout(), f.file)
	return nil
}

// collect fills the archive. It fails where there is neither a cluster nor an agent on this node.
func (f *sysdumpFlags) collect(ctx context.Context, say io.Writer, archive *sysdump.Archive) error {
	if f.nodeOnly {
		return f.node(ctx, archive)
	}
	peers, server, err := f.peers(ctx, "myelin-sysdump")
	if err != nil {
		if !fileExists(f.socket) {
			return err
		}
		fmt.Fprintf(say, "this node alone: %v\n", err)
		archive.Fail("kubernetes", err)
		return f.node(ctx, archive)
	}
	if server != nil {
		c := sysdump.Cluster{Server: server, Namespace: f.namespace}
		archive.Learn(server.Secrets()...)
		fmt.Fprintln(say, "collecting: Kubernetes")
		c.Collect(ctx, archive)
	}
	for _, p := range peers {
		fmt.Fprintln(say, "collecting: node", p.node)
		prefix := filepath.Join("nodes", p.node)
		data, err := p.run(ctx, "sysdump", "--node-only", "--file=-", fmt.Sprintf("--rows=%d", f.rows))
		if err == nil {
			err = archive.Merge(prefix, bytes.NewReader(data))
		}
		if err != nil {
			archive.Fail(prefix, err)
		}
		for name, file := range p.files {
			archive.AddFile(filepath.Join(prefix, "files", name), file)
		}
	}
	return nil
}

// node collects from this node, also where its agent does not answer.
func (f *sysdumpFlags) node(ctx context.Context, archive *sysdump.Archive) error {
	versions, err := readVersions(ctx, f.socket, true)
	if err != nil {
		archive.Fail("version.json", err)
	}
	client, done, err := dial(f.socket)
	if err != nil {
		return err
	}
	defer done()
	if os.Geteuid() != 0 {
		archive.Fail("node", errors.New("not run by root: what needs its rights is left out"))
	}
	n := sysdump.Node{Agent: client, Versions: versions, Proc: "/proc", Sys: "/sys", Rows: f.rows,
		Checks: agent.Checks()}
	n.Collect(ctx, archive)
	return nil
}
