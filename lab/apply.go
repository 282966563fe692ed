package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Apply adds the objects of a YAML file or directory to the lab, or replaces those it has, and waits for the pods to
// settle (see Up), until ctx ends. A Pod whose spec changed is made anew. With prune, objects that are not in path are
// removed, Nodes excepted. A Node that the lab does not have, or with other addresses, is an error.
func (l *Lab) Apply(ctx context.Context, path string, prune bool) error {
	objects, err := readObjects(path)
	if err != nil {
		return err
	}
	if err := l.checkNodes(objects); err != nil {
		return err
	}
	if _, err := pods(objects); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, o := range objects {
		keep[o.fileName()] = true
		if err := writeFile(l.path("manifests", o.fileName()), o.data); err != nil {
			return fmt.Errorf("apply %s: %w", o, err)
		}
	}
	if prune {
		present, err := readObjects(l.Manifests())
		if err != nil {
			return err
		}
		var gone []*object
		for _, o := range present {
			if !keep[o.fileName()] && !o.isNode() {
				gone = append(gone, o)
			}
		}
		if err := l.drop(gone); err != nil {
			return err
		}
	}
	return l.Wait(ctx)
}

// Delete removes the objects of a YAML file or directory from the lab, and waits until pods among them are gone. Objects
// that the lab does not have are no error; Nodes can't be deleted.
func (l *Lab) Delete(ctx context.Context, path string) error {
	objects, err := readObjects(path)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.isNode() {
			return fmt.Errorf("delete %s: nodes can't leave a lab", o)
		}
	}
	if err := l.drop(objects); err != nil {
		return err
	}
	return l.Wait(ctx)
}

// DeletePod removes a pod, named as for Pod, and waits until it is gone.
func (l *Lab) DeletePod(ctx context.Context, name string) error {
	p := l.Pod(name)
	if p.err != nil {
		return p.err
	}
	o := &object{}
	o.Kind, o.Namespace, o.Name = "Pod", p.state.Namespace, p.state.Name
	if err := l.drop([]*object{o}); err != nil {
		return err
	}
	return l.Wait(ctx)
}

func (l *Lab) drop(objects []*object) error {
	for _, o := range objects {
		if err := os.Remove(l.path("manifests", o.fileName())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("delete %s: %w", o, err)
		}
	}
	return nil
}

func (l *Lab) checkNodes(objects []*object) error {
	nodes, err := planNodes(objects, l.opts.Underlay)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		have := l.Node(n.Name)
		if have.err != nil {
			return fmt.Errorf("%w: nodes can't join a lab that is up", have.err)
		}
		if fmt.Sprint(have.state.Addresses) != fmt.Sprint(n.Addresses) {
			return fmt.Errorf("node %s has the addresses %v, which can't change to %v", n.Name, have.state.Addresses, n.Addresses)
		}
	}
	return nil
}
