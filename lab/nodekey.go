package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
		if !o.isNode() || keys[o.Name] == "" || o.Annotations[cluster.WireGuardAnnotation] == keys[o.Name] {
			continue
		}
		edited := *o
		if err := edited.annotate(map[string]string{cluster.WireGuardAnnotation: keys[o.Name]}); err != nil {
			return fmt.Errorf("publish key of %s: %w", o, err)
		}
		if err := l.writeManifest(edited.fileName(), edited.data); err != nil {
			return err
		}
	}
	return nil
}

// lackKeys reports whether a Node does not have its key.
func lackKeys(objects []*object, keys map[string]string) bool {
	for _, o := range objects {
		if o.isNode() && keys[o.Name] != "" && o.Annotations[cluster.WireGuardAnnotation] != keys[o.Name] {
			return true
		}
	}
	return false
}

// nodeKeys are the public keys that the agents of the lab's nodes have written, by node.
func (l *Lab) nodeKeys() (map[string]string, error) {
	keys := map[string]string{}
	for _, n := range l.Nodes() {
		data, err := os.ReadFile(encryption.PublicKeyFile(n.RunDir()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key of node %s: %w", n.name, err)
		}
		keys[n.name] = strings.TrimSpace(string(data))
	}
	return keys, nil
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
		for k, v := range annotations {
			child(child(doc, "metadata"), "annotations")[k] = v
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
