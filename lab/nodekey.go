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
	"myelin/encryption/ipsec"
)

// published are the files with what agents publish for encryption without an API server, by annotation of the Node.
func published(runDir string) map[string]string {
	return map[string]string{
		cluster.WireGuardAnnotation:     encryption.PublicKeyFile(runDir),
		cluster.NextWireGuardAnnotation: encryption.NextPublicKeyFile(runDir),
		cluster.IPsecAnnotation:         ipsec.PublishedFile(runDir),
	}
}

// publishKeys writes what nodes publish for encryption into their Nodes, as agents do it with an API server.
func (l *Lab) publishKeys() error {
	keys, err := l.nodeKeys()
	if err != nil || len(keys) == 0 {
		return err
	}
	objects, err := l.objects()
	if err != nil || !slices.ContainsFunc(objects, func(o *object) bool { return o.lacks(keys[o.Name]) }) {
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
		if !o.lacks(keys[o.Name]) {
			continue
		}
		edited := *o
		if err := edited.annotate(keys[o.Name]); err != nil {
			return fmt.Errorf("publish key of %s: %w", o, err)
		}
		if err := l.writeManifest(edited.fileName(), edited.data); err != nil {
			return err
		}
	}
	return nil
}

// lacks reports whether it is a Node that does not have the annotations.
func (o *object) lacks(annotations map[string]string) bool {
	for name, value := range annotations {
		if o.isNode() && o.Annotations[name] != value {
			return true
		}
	}
	return false
}

// nodeKeys are the annotations that the agents of the lab's nodes have written, by node. An empty one is none.
func (l *Lab) nodeKeys() (map[string]map[string]string, error) {
	keys := map[string]map[string]string{}
	for _, n := range l.Nodes() {
		of := map[string]string{}
		for annotation, file := range published(n.RunDir()) {
			value, err := readKey(file)
			if err != nil {
				return nil, fmt.Errorf("key of node %s: %w", n.name, err)
			}
			if value != "" || annotation == cluster.NextWireGuardAnnotation { // which goes again
				of[annotation] = value
			}
		}
		if of[cluster.WireGuardAnnotation] != "" || of[cluster.IPsecAnnotation] != "" {
			keys[n.name] = of
		}
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
		_ = s.watch.Add(n.RunDir())
		for _, file := range published(n.RunDir()) {
			_ = s.watch.Add(filepath.Dir(file)) // one that is not there yet is watched after the rescan
		}
	}
}

// keepKey leaves a Node that is applied again its keys.
func (o *object) keepKey(earlier *object) error {
	kept := map[string]string{}
	for annotation := range published("") {
		if earlier != nil && earlier.Annotations[annotation] != "" && o.Annotations[annotation] == "" {
			kept[annotation] = earlier.Annotations[annotation]
		}
	}
	if len(kept) == 0 {
		return nil
	}
	applied := o.data
	err := o.annotate(kept)
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
