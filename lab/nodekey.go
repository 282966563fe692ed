package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/encryption"
)

// publishKeys writes the nodes' public keys of WireGuard into their Nodes, as agents do it with an API server.
func (l *Lab) publishKeys() error {
	keys, err := l.nodeKeys()
	if err != nil || len(keys) == 0 {
		return err
	}
	objects, err := l.objects()
	if err != nil || !lackKeys(objects, keys) {
		return err
	}
	unlock, err := l.lockManifests()
	if err != nil {
		return err
	}
	defer unlock()
	if objects, err = l.objects(); err != nil {
		return err
	}
	for _, o := range objects {
		if !lacksKeys(o, keys) {
			continue
		}
		edited := *o
		if err := edited.annotate(annotationsOf(keys[o.Name])); err != nil {
			return fmt.Errorf("publish key of %s: %w", o, err)
		}
		if err := l.writeManifest(edited.fileName(), edited.data); err != nil {
			return err
		}
	}
	return nil
}

// nodeKey is the public key that an agent has written, and the one that it changes to, or none.
type nodeKey struct{ key, next string }

// annotationsOf are those of a Node with a key. An empty value is none.
func annotationsOf(k nodeKey) map[string]string {
	return map[string]string{cluster.WireGuardAnnotation: k.key, cluster.NextWireGuardAnnotation: k.next}
}

// lackKeys reports whether a Node does not have its keys.
func lackKeys(objects []*object, keys map[string]nodeKey) bool {
	return slices.ContainsFunc(objects, func(o *object) bool { return lacksKeys(o, keys) })
}

func lacksKeys(o *object, keys map[string]nodeKey) bool {
	k := keys[o.Name]
	return o.isNode() && k.key != "" && (o.Annotations[cluster.WireGuardAnnotation] != k.key ||
		o.Annotations[cluster.NextWireGuardAnnotation] != k.next)
}

// nodeKeys are the public keys that the agents of the lab's nodes have written, by node.
func (l *Lab) nodeKeys() (map[string]nodeKey, error) {
	keys := map[string]nodeKey{}
	for _, n := range l.Nodes() {
		key, err := readKey(encryption.PublicKeyFile(n.RunDir()))
		next, err2 := readKey(encryption.NextPublicKeyFile(n.RunDir()))
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("key of node %s: %w", n.name, err)
		}
		keys[n.name] = nodeKey{key, next}
	}
	return keys, nil
}

// readKey reads a file with a key; empty if there is none.
func readKey(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// watchKeys has the supervisor woken by keys that agents write.
func (s *supervisor) watchKeys() {
	for _, n := range s.lab.Nodes() {
		for _, dir := range []string{n.RunDir(), filepath.Dir(encryption.PublicKeyFile(n.RunDir()))} {
			_ = s.watch.Add(dir) // one that is not there yet is watched after the rescan
		}
	}
}

// keepKey leaves a Node that is applied again its key.
func (o *object) keepKey(earlier *object) error {
	if earlier == nil || earlier.Annotations[cluster.WireGuardAnnotation] == "" ||
		o.Annotations[cluster.WireGuardAnnotation] != "" {
		return nil
	}
	applied := o.data
	err := o.annotate(map[string]string{cluster.WireGuardAnnotation: earlier.Annotations[cluster.WireGuardAnnotation]})
	o.applied = applied
	return err
}

// annotate adds annotations to the document.
func (o *object) annotate(annotations map[string]string) error {
	return o.edit(func(doc map[string]any) {
		all := child(child(doc, "metadata"), "annotations")
		for k, v := range annotations {
			if all[k] = v; v == "" {
				delete(all, k)
			}
		}
	})
}

// edit changes the document and leaves all else in it as it is, so that agents see what is wrong with it. What was
// applied stays known by the annotation that kubectl uses.
func (o *object) edit(change func(doc map[string]any)) error {
	applied, err := yaml.YAMLToJSON(appliedOf(o.data))
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(o.data, &doc); err != nil {
		return err
	}
	change(doc)
	annotations := child(child(doc, "metadata"), "annotations")
	annotations[corev1.LastAppliedConfigAnnotation] = strings.TrimSpace(string(applied))
	if o.data, err = yaml.Marshal(doc); err != nil {
		return err
	}
	o.Annotations = nil // the map may be another copy's too
	return yaml.Unmarshal(o.data, o)
}

// child is the mapping of that name in a document, made if it is not there.
func child(of map[string]any, name string) map[string]any {
	m, ok := of[name].(map[string]any)
	if !ok {
		m = map[string]any{}
		of[name] = m
	}
	return m
}
