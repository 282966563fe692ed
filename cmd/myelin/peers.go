package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"myelin/kube/apiserver"
	"myelin/lab"
)

// peer is a node of the cluster whose agent can be asked by running this program beside it.
type peer struct {
	node string
	// run returns what the command printed to standard output, also where it failed.
	run func(ctx context.Context, args ...string) ([]byte, error)
	// files are those of the node that are collected, by name; nil where it can't be reached by a path.
	files map[string]string
}

// clusterFlags say which cluster is meant.
type clusterFlags struct {
	kubeConfig, context, namespace, lab string
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeConfig, "kubeconfig", "",
		"kubeconfig file of the cluster (default what kubectl takes)")
	cmd.Flags().StringVar(&f.context, "context", "", "of the kubeconfig (default its current one)")
	cmd.Flags().StringVar(&f.namespace, "agent-namespace", apiserver.AgentNamespace, "where DaemonSet myelin is")
	cmd.Flags().
		StringVar(&f.lab, "lab", os.Getenv(lab.DirVariable),
			"instead of a Kubernetes cluster, a lab: its name or directory (also "+lab.DirVariable+")")
}

// peers are all nodes of the cluster, and its API server, nil for a lab.
func (f *clusterFlags) peers(ctx context.Context, agent string) ([]peer, *apiserver.Server, error) {
	if f.lab != "" {
		list, err := labPeers(f.lab)
		return list, nil, err
	}
	server, err := apiserver.Connect(f.kubeConfig, f.context, agent)
	if err != nil {
		return nil, nil, err
	}
	agents, err := server.Agents(ctx, f.namespace)
	if err != nil {
		return nil, server, fmt.Errorf("find the agents: %w", err)
	}
	var list []peer
	for _, a := range agents {
		list = append(list, peer{node: a.Node, run: func(ctx context.Context, args ...string) ([]byte, error) {
			if !a.Running {
				return nil, fmt.Errorf("pod %s/%s does not run", a.Namespace, a.Pod)
			}
			out, err := server.Run(ctx, a, args...)
			return []byte(out), err
		}})
	}
	return list, server, nil
}

func labPeers(name string) (list []peer, err error) {
	dir := lab.DefaultDir
	if strings.Contains(name, "/") {
		dir, name = filepath.Split(filepath.Clean(name))
	}
	l, err := lab.Open(dir, name, nil)
	if err != nil {
		return nil, err
	}
	for _, n := range l.Nodes() {
		list = append(list, peer{node: n.Name(), files: map[string]string{"agent.log": n.AgentLog()},
			run: func(ctx context.Context, args ...string) (out []byte, err error) {
				cmd := n.Command(ctx, append([]string{"myelin"}, args...)...)
				err = n.Do(func() error {
					out, err = cmd.Output()
					return err
				})
				return out, saidError(err)
			}})
	}
	return list, nil
}

// saidError is the error of a command with what it wrote of it.
func saidError(err error) error {
	if exit, ok := err.(*exec.ExitError); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
