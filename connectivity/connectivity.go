// Package connectivity tests the network of a Kubernetes cluster from within: it
// deploys pods and Services of its own, has the pods ask each other, applies
// policies, explains what fails, and removes what it made.
package connectivity

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"myelin/kube/apiserver"
)

// server is the API server that the tests are made with.
type server struct{ *apiserver.Server }

func connect(o Options) (*server, error) {
	s, err := apiserver.Connect(o.KubeConfig, o.Context, "myelin-connectivity")
	if err != nil {
		return nil, err
	}
	return &server{s}, nil
}

// Options say what to test, and how.
type Options struct {
	// KubeConfig is a kubeconfig file; empty: what kubectl would take. Context is one
	// of its contexts; empty: the current one.
	KubeConfig, Context string
	// Image has /myelin; empty: that of the DaemonSet, else DefaultImage.
	Image, DefaultImage string
	// AgentNamespace is where the DaemonSet is.
	AgentNamespace string
	// Nodes are one or two; empty: the first two that are ready.
	Nodes []string
	// Test selects tests by their names, and Skip leaves some out; nil: all, and none.
	Test, Skip *regexp.Regexp
	// ExternalTarget is a URL outside of the cluster that a Probe can take; empty:
	// nothing outside is asked.
	ExternalTarget string
	// Domain is that of the cluster's names, e.g. "cluster.local".
	Domain string
	// Keep leaves all there at the end.
	Keep bool
	// Progress gets lines as things happen.
	Progress io.Writer
}

func (o *Options) wants(name string) bool {
	return (o.Test == nil || o.Test.MatchString(name)) && (o.Skip == nil || !o.Skip.MatchString(name))
}

// List says which tests there are, a line each. It needs no cluster.
func List(w io.Writer, o Options) error {
	f := &facts{crew: newCrew("list", "a", "b"), near: "a", far: "b", external: o.ExternalTarget}
	for _, t := range plan(f) {
		if !o.wants(t.name) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-34s %s\n", t.name, t.about); err != nil {
			return err
		}
	}
	return nil
}

// Test runs the tests and removes what it made, also when ctx ends before. An error is
// one of the run itself: tests that fail are in the report alone.
func Test(ctx context.Context, o Options) (report *Report, err error) {
	began := time.Now()
	s, err := connect(o)
	if err != nil {
		return nil, err
	}
	f, err := s.discover(ctx, o)
	if err != nil {
		return nil, err
	}
	namespace := fmt.Sprintf("myelin-test-%05x", rand.IntN(1<<20))
	report = &Report{Namespace: namespace, Nodes: []string{f.near, f.far}, Image: f.image}
	fmt.Fprintf(o.Progress, "in namespaces %s and %s-other on %s, with image %s\n", namespace, namespace,
		strings.Join(report.Nodes, " and "), f.image)
	if left, err := s.former(ctx); err == nil && len(left) > 0 {
		fmt.Fprintf(o.Progress, "another run is under way, or has left something and may be in the way: kubectl "+
			"delete namespace %s\n", strings.Join(left, " "))
	}
	defer func() {
		if o.Keep {
			fmt.Fprintf(o.Progress, "kept: kubectl delete namespace %s %s-other\n", namespace, namespace)
			return
		}
		fmt.Fprintln(o.Progress, "cleaning up")
		if e := s.clean(context.WithoutCancel(ctx), namespace); e != nil && err == nil {
			err = e
		}
	}()
	if err := s.deploy(ctx, f, namespace); err != nil {
		return nil, err
	}
	for _, p := range f.all() {
		if p.problem != "" {
			fmt.Fprintln(o.Progress, p.problem)
		}
	}
	r := &runner{server: s, facts: f}
	if slices.ContainsFunc(plan(f), func(t test) bool { return t.watch != nil && o.wants(t.name) }) {
		r.learnEncryption(ctx)
	}
	for _, t := range plan(f) {
		if !o.wants(t.name) {
			continue
		}
		result := r.run(ctx, t)
		if ctx.Err() != nil { // then it says nothing
			report.Interrupted = true
			break
		}
		report.add(result)
		fmt.Fprint(o.Progress, result.text())
	}
	report.Took = time.Since(began).Seconds()
	report.summary(o.Progress)
	return report, nil
}
