package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/kube/manifests"
)

// seenLimit bounds how long agents may take to read manifests that changed.
const seenLimit = 10 * time.Second

// verdicts waits until the agents that run have read the objects, and notes on changes, of which the first ones are
// theirs, why objects are rejected. An agent that does not get there is an error.
func (l *Lab) verdicts(ctx context.Context, objects []*object, changes []Change) error {
	ctx, cancel := context.WithTimeoutCause(ctx, seenLimit, fmt.Errorf("not within %s", seenLimit))
	defer cancel()
	reasons, partly := make([]verdict, len(objects)), make([]verdict, len(objects))
	policies := slices.ContainsFunc(objects, (*object).isCiliumPolicy)
	asked := 0
	var errs []error
	for _, n := range l.Nodes() {
		if !n.AgentProcess().Alive() || !n.readsManifests() {
			continue
		}
		asked++
		problems, err := n.rejected(ctx, objects)
		if err != nil {
			errs = append(errs, fmt.Errorf("the agent of %s has not read all objects: %w", n.name, err))
		}
		var unenforced map[string][]string
		if err == nil && policies {
			if unenforced, err = n.unenforced(ctx); err != nil {
				errs = append(errs, err)
			}
		}
		for i, o := range objects {
			for _, reason := range problems[o.fileName()] {
				reasons[i].add(reason, n.name)
			}
			for _, reason := range unenforced[o.fileName()] {
				partly[i].add(reason, n.name)
			}
		}
	}
	for i := range objects {
		changes[i].Rejected, changes[i].Partly = reasons[i].text(asked), partly[i].text(asked)
	}
	return errors.Join(errs...)
}

// verdict collects why an object is rejected, and by which nodes' agents.
type verdict struct {
	reasons []string
	nodes   map[string][]string // by reason
}

func (v *verdict) add(reason, node string) {
	if v.nodes == nil {
		v.nodes = map[string][]string{}
	}
	if v.nodes[reason] == nil {
		v.reasons = append(v.reasons, reason)
	}
	v.nodes[reason] = append(v.nodes[reason], node)
}

// text names nodes where not all agents say the same.
func (v *verdict) text(asked int) string {
	var parts []string
	for _, reason := range v.reasons {
		if nodes := v.nodes[reason]; len(nodes) < asked {
			reason += " (on " + strings.Join(nodes, ", ") + ")"
		}
		parts = append(parts, reason)
	}
	return strings.Join(parts, "; ")
}

// readsManifests reports whether the node's agent reads the lab's manifests: a load balancer without a cluster doesn't.
func (n *Node) readsManifests() bool {
	keys, err := n.config()
	return err == nil && !standalone(keys)
}

// rejected waits until the node's agent has read the files of objects as they are now, and returns why it rejects some,
// by file.
func (n *Node) rejected(ctx context.Context, objects []*object) (map[string][]string, error) {
	for {
		missing, err := n.unread(ctx, objects)
		if err == nil && missing == "" {
			return n.problems(ctx)
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = errors.New(missing + " is not read")
			}
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unread names an object that the agent has not read, or not as it is now; empty: it has read all.
func (n *Node) unread(ctx context.Context, objects []*object) (string, error) {
	var files []manifests.File
	if err := n.list(ctx, "manifest-files", &files); err != nil {
		return "", err
	}
	stamps := map[string]string{}
	for _, f := range files {
		stamps[f.Name] = f.Stamp
	}
	for _, o := range objects {
		info, err := os.Stat(n.lab.path("manifests", o.fileName()))
		if errors.Is(err, os.ErrNotExist) { // deleted since
			continue
		}
		if err != nil {
			return "", err
		}
		if stamps[o.fileName()] != manifests.Stamp(info) {
			return o.String(), nil
		}
	}
	return "", nil
}

// problems are what the agent rejects, "field: reason", by file.
func (n *Node) problems(ctx context.Context) (map[string][]string, error) {
	var rows []struct{ File, Field, Reason string }
	if err := n.list(ctx, "manifest-problems", &rows); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, r := range rows {
		reason := strings.TrimPrefix(r.Field+": "+r.Reason, ": ")
		if !slices.Contains(out[r.File], reason) {
			out[r.File] = append(out[r.File], reason)
		}
	}
	for _, reasons := range out {
		slices.Sort(reasons)
	}
	return out, nil
}

// isCiliumPolicy reports whether an object may have rules that agents take without enforcing them.
func (o *object) isCiliumPolicy() bool {
	return o.Kind == "CiliumNetworkPolicy" || o.Kind == "CiliumClusterwideNetworkPolicy"
}

// unenforced is what the agent has taken of policies and can't enforce, by file.
func (n *Node) unenforced(ctx context.Context) (map[string][]string, error) {
	var rows []struct {
		Source string
		Specs  []struct {
			Rules []struct{ Unenforced []string }
		}
	}
	if err := n.list(ctx, "policies", &rows); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, r := range rows {
		file := strings.TrimPrefix(r.Source, "manifests:")
		for _, spec := range r.Specs {
			for _, rule := range spec.Rules {
				for _, reason := range rule.Unenforced {
					if !slices.Contains(out[file], reason) {
						out[file] = append(out[file], reason)
					}
				}
			}
		}
	}
	return out, nil
}

// list reads a table of the node's agent.
func (n *Node) list(ctx context.Context, table string, into any) error {
	return n.ask(func(client apiv1.AgentClient) error {
		stream, err := client.List(ctx, &apiv1.ListRequest{Table: table, Json: true})
		if err != nil {
			return err
		}
		var all []json.RawMessage
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			var rows []json.RawMessage
			if err := json.Unmarshal(part.GetJson(), &rows); err != nil {
				return fmt.Errorf("read table %s: %w", table, err)
			}
			all = append(all, rows...)
		}
		data, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, into)
	})
}

// ask calls the node's agent.
func (n *Node) ask(call func(apiv1.AgentClient) error) error {
	conn, err := api.Dial(n.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := call(apiv1.NewAgentClient(conn)); err != nil {
		return fmt.Errorf("ask the agent of %s: %w", n.name, err)
	}
	return nil
}
