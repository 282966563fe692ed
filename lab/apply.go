package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ApplyOptions say what Apply does.
type ApplyOptions struct {
	// Paths are YAML files or directories; "-" is Stdin.
	Paths []string
	Stdin io.Reader
	// Prune removes the objects that are not in Paths, Nodes excepted.
	Prune bool
	// Each is called with what became of each object, in the order of Paths. If it is set, Apply waits until the agents
	// that run have read the objects, and an object that one of them rejects is an error.
	Each func(Change)
	// Note is called with what else there is to say, when all is done: images that are not run. It may be nil.
	Note func(string)
}

// Change is what became of an object.
type Change struct {
	Kind, Namespace, Name string
	Action                string // Created, Configured, Unchanged, Pruned or Deleted
	Rejected              string // why agents reject it; empty if none does
	Partly                string // what agents do not enforce of a policy, and therefore do not allow
}

// Actions of Change, in the words of kubectl.
const (
	resultCreated    = "created"
	resultConfigured = "configured"
	resultUnchanged  = "unchanged"
	resultPruned     = "pruned"
	resultDeleted    = "deleted" // by Delete
)

// String is as kubectl has it: "pod/demo/web created".
func (c Change) String() string {
	name := c.Name
	if c.Namespace != "" {
		name = c.Namespace + "/" + c.Name
	}
	text := strings.ToLower(c.Kind) + "/" + name + " "
	if c.Rejected != "" {
		return text + "rejected: " + c.Rejected
	}
	text += c.Action
	if c.Partly != "" {
		text += ", partly enforced: " + c.Partly
	}
	return text
}

// Apply adds the objects of a YAML file or directory to the lab, or replaces those it has, and waits for the pods to
// settle (see Up), until ctx ends. A Pod whose spec changed is made anew. With prune, objects that are not in path are
// removed, Nodes excepted. A Node that the lab does not have, or with other addresses, is an error.
func (l *Lab) Apply(ctx context.Context, path string, prune bool) error {
	return l.ApplyAll(ctx, ApplyOptions{Paths: []string{path}, Prune: prune})
}

// ApplyAll is Apply for several paths, and says what became of each object.
func (l *Lab) ApplyAll(ctx context.Context, o ApplyOptions) error {
	objects, err := readAll(o.Stdin, o.Paths...)
	if err != nil {
		return err
	}
	if err := l.checkNodes(objects); err != nil {
		return err
	}
	if _, err := pods(objects); err != nil {
		return err
	}
	if err := checkWorkloads(objects); err != nil {
		return err
	}
	changes, err := l.putAll(objects, o.Prune)
	if err != nil {
		return err
	}
	if o.Note != nil {
		defer func() {
			for _, line := range l.notRun(objects) {
				o.Note(line)
			}
		}()
	}
	if o.Each == nil {
		return l.wait(ctx)
	}
	err = l.verdicts(ctx, objects, changes)
	rejected := 0
	for _, c := range changes {
		o.Each(c)
		if c.Rejected != "" {
			rejected++
		}
	}
	if rejected > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d objects are rejected", rejected, len(changes)))
	}
	return errors.Join(err, l.wait(ctx))
}

// putAll writes objects into the lab's copy of the manifests, and with prune removes all others.
func (l *Lab) putAll(objects []*object, prune bool) ([]Change, error) {
	unlock, err := l.lockManifests()
	if err != nil {
		return nil, err
	}
	defer unlock()
	present, err := l.objects()
	if err != nil {
		return nil, err
	}
	if err := l.complete(objects, present); err != nil {
		return nil, err
	}
	changes := make([]Change, len(objects))
	for i, object := range objects {
		if changes[i], err = l.put(object); err != nil {
			return nil, fmt.Errorf("apply %s: %w", object, err)
		}
	}
	if !prune {
		return changes, nil
	}
	gone, err := l.prune(objects, present)
	return append(changes, gone...), err
}

// put writes an object into the lab's copy of the manifests.
func (l *Lab) put(o *object) (Change, error) {
	c := Change{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Action: resultCreated}
	path := l.path("manifests", o.fileName())
	old, err := os.ReadFile(path)
	switch {
	case err == nil && sameYAML(appliedOf(old), o.asApplied()):
		c.Action = resultUnchanged
	case err == nil:
		c.Action = resultConfigured
	case !errors.Is(err, os.ErrNotExist):
		return c, err
	}
	// Lines count too: agents name those that a rule was made of. A Pod that has not changed keeps its node, a Node its
	// key.
	keeps := c.Action == resultUnchanged && (o.isPod() || o.isNode())
	if err == nil && (bytes.Equal(old, o.data) || keeps && len(appliedOf(old)) != len(old)) {
		return c, nil
	}
	return c, l.writeManifest(o.fileName(), o.data)
}

// asApplied is the document as it was applied, without what the lab has added.
func (o *object) asApplied() []byte {
	if o.applied != nil {
		return o.applied
	}
	return o.data
}

// sameYAML reports whether two documents say the same.
func sameYAML(a, b []byte) bool {
	x, err1 := yaml.YAMLToJSON(a)
	y, err2 := yaml.YAMLToJSON(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

// prune removes what is not among objects.
// What a workload owns goes with it.
func (l *Lab) prune(objects, present []*object) ([]Change, error) {
	var changes []Change
	var gone []*object
	for _, o := range present {
		wanted := func(other *object) bool { return other.fileName() == o.fileName() }
		if !o.isNode() && metav1.GetControllerOf(o) == nil && !slices.ContainsFunc(objects, wanted) {
			gone = append(gone, o)
			changes = append(changes, Change{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Action: resultPruned})
		}
	}
	return changes, l.dropLocked(gone)
}

// Delete removes the objects of YAML files or directories from the lab, and waits until pods among them are gone.
// Objects that the lab does not have are no error; Nodes can't be deleted.
func (l *Lab) Delete(ctx context.Context, paths ...string) error {
	return l.DeleteAll(ctx, nil, paths, func(Change) {})
}

// DeleteAll is Delete, and calls each with what the lab had.
// The path "-" is stdin.
func (l *Lab) DeleteAll(ctx context.Context, stdin io.Reader, paths []string, each func(Change)) error {
	objects, err := readAll(stdin, paths...)
	if err != nil {
		return err
	}
	var changes []Change
	for _, o := range objects {
		if o.isNode() {
			return fmt.Errorf("delete %s: nodes can't leave a lab", o)
		}
		if _, err := os.Stat(l.path("manifests", o.fileName())); err == nil {
			changes = append(changes, Change{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Action: resultDeleted})
		}
	}
	if err := l.drop(objects); err != nil {
		return err
	}
	for _, c := range changes {
		each(c)
	}
	return l.wait(ctx)
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
	return l.wait(ctx)
}

// DeleteNamed removes a pod, named as for Pod, or an object by KIND/NAME, and waits until its pods are gone.
func (l *Lab) DeleteNamed(ctx context.Context, name string) (Change, error) {
	p := l.Pod(name)
	kind, rest, ok := strings.Cut(name, "/")
	r, known := resourceNamed(kind)
	if p.err == nil || !ok || !known {
		return Change{
				Kind:      "Pod",
				Namespace: p.state.Namespace,
				Name:      p.state.Name,
				Action:    resultDeleted,
			}, l.DeletePod(
				ctx,
				name,
			)
	}
	items, err := l.Get(ctx, Query{Resource: kind, Names: []string{rest}})
	switch {
	case err != nil:
		return Change{}, err
	case len(items) > 1:
		return Change{}, fmt.Errorf(
			"%s is in more than one namespace: write %s/%s/%s",
			name,
			kind,
			items[0].Namespace,
			items[0].Name,
		)
	case r.kind == "Node":
		return Change{}, fmt.Errorf("delete %s: nodes can't leave a lab", name)
	}
	o := &object{}
	o.Kind, o.Namespace, o.Name = r.kind, items[0].Namespace, items[0].Name
	if err := l.drop([]*object{o}); err != nil {
		return Change{}, err
	}
	return Change{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Action: resultDeleted}, l.wait(ctx)
}

func (l *Lab) drop(objects []*object) error {
	unlock, err := l.lockManifests()
	if err != nil {
		return err
	}
	defer unlock()
	return l.dropLocked(objects)
}

func (l *Lab) dropLocked(objects []*object) error {
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
			return fmt.Errorf(
				"node %s has the addresses %v, which can't change to %v",
				n.Name,
				have.state.Addresses,
				n.Addresses,
			)
		}
	}
	return nil
}
