package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	apiv1 "myelin/api/v1"
	"myelin/status"
)

// nodeStatus is what one node of a cluster answers.
type nodeStatus struct {
	Node   string         `json:"node"`
	State  status.State   `json:"state"`
	Error  string         `json:"error,omitempty"` // why there is no report
	Report *status.Report `json:"report,omitempty"`
}

// asked is how many nodes are asked at once.
const asked = 16

// runCluster shows the status of all nodes. It waits, where that is wanted, until all are ready and nothing is broken.
func (f *statusFlags) runCluster(cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), f.patience)
	defer cancel()
	for {
		nodes, err := f.askNodes(ctx)
		bad := slices.ContainsFunc(nodes, func(n nodeStatus) bool { return n.State == status.Broken })
		if f.wait && (err != nil || bad) && ctx.Err() == nil {
			select {
			case <-time.After(time.Second):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil {
			return err
		}
		if err := f.writeNodes(cmd.OutOrStdout(), nodes); err != nil {
			return err
		}
		if bad {
			return exitStatus(1)
		}
		return nil
	}
}

func (f *statusFlags) askNodes(ctx context.Context) ([]nodeStatus, error) {
	peers, _, err := f.peers(ctx, "myelin-status")
	if err != nil {
		return nil, err
	}
	if len(peers) == 0 {
		return nil, fmt.Errorf(
			"there is no agent: namespace %s has no pod of a DaemonSet myelin (--agent-namespace)",
			f.namespace,
		)
	}
	nodes := make([]nodeStatus, len(peers))
	var group errgroup.Group
	group.SetLimit(asked)
	for i, p := range peers {
		group.Go(func() error {
			nodes[i] = askNode(ctx, p)
			return nil
		})
	}
	_ = group.Wait() // errors are the nodes'
	slices.SortFunc(nodes, func(a, b nodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return nodes, nil
}

// askNode has the node's agent asked on the node. Its command fails where something is broken, after it has said what.
func askNode(ctx context.Context, p peer) nodeStatus {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := p.run(ctx, "status", "--output=json")
	report := &status.Report{}
	if e := json.Unmarshal(out, report); e != nil {
		return nodeStatus{
			Node:  p.node,
			State: status.Broken,
			Error: strings.TrimSpace(cmp.Or(err, errors.New("no answer")).Error()),
		}
	}
	return nodeStatus{Node: p.node, State: report.State, Report: report}
}

func (f *statusFlags) writeNodes(w io.Writer, nodes []nodeStatus) error {
	if f.output.structured() {
		return f.output.write(w, nodes)
	}
	style := f.style(w)
	if style.Verbose {
		for _, n := range nodes {
			if err := n.render(w, style); err != nil {
				return err
			}
		}
	}
	t := &apiv1.ListResponse{Columns: []string{"Node", "State", "Version", "Kernel", "Up", "Endpoints", "Problems"}}
	counts := map[status.State]int{}
	for _, n := range nodes {
		counts[n.State]++
		t.Rows = append(t.Rows, &apiv1.ListRow{Cells: n.cells()})
	}
	if err := writeLines(w, t); err != nil {
		return err
	}
	_, err := fmt.Fprintf(
		w,
		"\n%d nodes: %d ok, %d with a fallback, %d broken\n",
		len(nodes),
		counts[status.OK],
		counts[status.Fallback],
		counts[status.Broken],
	)
	return err
}

func (n *nodeStatus) render(w io.Writer, style status.Style) error {
	if n.Report != nil {
		if err := n.Report.Render(w, style); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// cells are those of the node's line; of problems each feature has a line.
func (n *nodeStatus) cells() []string {
	r := n.Report
	if r == nil {
		return []string{n.Node, string(n.State), "", "", "", "", n.Error}
	}
	var problems []string
	for _, f := range r.Features {
		if f.State == status.Broken || f.State == status.Fallback {
			problems = append(problems, f.Name+": "+strings.Join(f.Problems, "; "))
		}
	}
	endpoints := ""
	if f := r.Feature("Endpoints"); f != nil {
		endpoints = f.Chosen
	}
	return []string{
		n.Node, string(n.State), r.Version, r.Kernel, r.Time.Sub(r.Began).Round(time.Second).String(), endpoints,
		strings.Join(problems, "\n"),
	}
}
