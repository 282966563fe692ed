package manifests

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
)

// key names an object in a directory.
type key struct{ kind, namespace, name string }

// String is "Kind namespace/name".
func (k key) String() string {
	return k.kind + " " + cluster.Key{Namespace: k.namespace, Name: k.name}.String()
}

// document is one object of a file, of a kind that has a table.
type document struct {
	key key
	row any // a pointer to a row of package cluster or policy; nil: refused
	// closed is what is understood of a policy or a group that is refused, for where
	// no version was good.
	closed any
}

// content is what a file says.
type content struct {
	docs     []document
	problems []*cluster.Problem
	// incomplete says that there were parts whose object is not known.
	incomplete bool
	// suspects are names of objects whose kind makes no sense: any object of
	// that name may be meant.
	suspects map[cluster.Key]bool
	unused   map[string]int
}

// partID is a part of a file that means the same as long as its text stays where
// it is.
type partID struct {
	place, line int
	sum         [sha256.Size]byte
}

// read reads a file of any number of documents. Rows carry "manifests:" and the
// file's path as their source, and now as the time since when they are so. Parts
// that are in before, of the last reading, are not read again: files can be long.
func read(data []byte, rel string, now time.Time, before map[partID]content) (all content, parts map[partID]content) {
	all = newContent()
	parts = map[partID]content{}
	for i, doc := range split(data) {
		id := partID{place: i, line: doc.line, sum: sha256.Sum256(doc.text)}
		c, ok := before[id]
		if !ok {
			c = readPart(doc, fmt.Sprintf("document %d", i+1), rel, now)
		}
		parts[id] = c
		all.add(c)
	}
	if len(parts) == 1 {
		parts = nil // it is what changes if anything does
	}
	return all, parts
}

func readPart(doc part, name, rel string, now time.Time) content {
	p := parser{rel: rel, status: isStatus(rel), now: now, part: doc, content: newContent()}
	raw, err := yaml.YAMLToJSONStrict(doc.text)
	if err != nil {
		p.incomplete = true
		p.fault(name, "", yamlReason(err, doc.line))
		return p.content
	}
	p.object(name, raw, "")
	return p.content
}

func newContent() content {
	return content{suspects: map[cluster.Key]bool{}, unused: map[string]int{}}
}

// add adds what another part says.
func (c *content) add(o content) {
	c.docs = append(c.docs, o.docs...)
	c.problems = append(c.problems, o.problems...)
	c.incomplete = c.incomplete || o.incomplete
	maps.Copy(c.suspects, o.suspects)
	for kind, n := range o.unused {
		c.unused[kind] += n
	}
}

// part is one document of a file.
type part struct {
	text  []byte
	line  int // where it begins, from 1
	empty bool
}

// split cuts at lines that begin with a document marker (YAML 1.2, 9.1.2).
func split(data []byte) []part {
	var parts []part
	doc := part{line: 1, empty: true}
	end := func(next part) {
		if !doc.empty {
			parts = append(parts, doc)
		}
		doc = next
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := bytes.TrimRight(line, " \t\r\n")
		rest, marker := bytes.CutPrefix(line, []byte("---"))
		switch {
		case marker && (len(text) == 3 || rest[0] == ' ' || rest[0] == '\t'):
			// What stands behind the marker belongs to the document.
			end(part{text: append([]byte("   "), rest...), line: number, empty: len(text) == 3})
		case string(text) == "...":
			end(part{line: number + 1, empty: true})
		default:
			doc.text = append(doc.text, line...)
			doc.empty = doc.empty && len(text) == 0
		}
	}
	end(part{})
	return parts
}

// yamlReason is a YAML error on one line, without its packages' names, and with
// lines counted from the beginning of the file.
func yamlReason(err error, begin int) string {
	reason := strings.Join(strings.Fields(err.Error()), " ")
	for _, noise := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		reason = strings.TrimPrefix(reason, noise)
	}
	return regexp.MustCompile(`\bline \d+:`).ReplaceAllStringFunc(reason, func(s string) string {
		n, err := strconv.Atoi(strings.Trim(s, "line :"))
		if err != nil {
			return s
		}
		return fmt.Sprintf("line %d:", begin+n-1)
	})
}

type parser struct {
	content
	rel    string
	status bool
	now    time.Time
	part   part   // that is read
	under  string // the object's path in it
}

// sourceOf is what rows say of the file that they were read from.
func sourceOf(rel string) string { return "manifests:" + rel }

func (p *parser) fault(object, field, reason string) {
	p.problems = append(p.problems, &cluster.Problem{File: p.rel, Object: object, Field: field, Reason: reason})
}

// typeMeta is as much of an object as tells what it is.
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// object reads one object, or the objects of a list. Inside a list of one kind,
// list is that list's apiVersion and kind.
func (p *parser) object(name string, raw []byte, list string) {
	if string(bytes.TrimSpace(raw)) == "null" {
		return
	}
	var meta typeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		p.incomplete = true
		f := cluster.Fault(err)
		p.fault(name, f.Field, f.Reason)
		return
	}
	if version, of := path.Split(strings.TrimSuffix(list, "List")); of != "" && meta.Kind == "" {
		meta.APIVersion, meta.Kind = strings.TrimSuffix(version, "/"), of
	}
	kind := meta.APIVersion + "/" + meta.Kind
	k := key{kind: meta.Kind, namespace: meta.Metadata.Namespace, name: meta.Metadata.Name}
	if k.namespace == "" && hasNamespace(kind) {
		k.namespace = corev1.NamespaceDefault
	}
	if k.name != "" {
		name = k.String()
	}
	read := decoders()[kind]
	switch {
	case read != nil:
		read(p, name, k, raw)
	case isList(kind) && list == "":
		p.list(name, kind, raw)
	case isKnown(meta.APIVersion, meta.Kind):
		p.unused[kind]++
	case meta.Kind == "" || meta.APIVersion == "":
		p.suspect(k)
		p.fault(name, "kind", "apiVersion and kind must be set")
	default:
		p.suspect(k)
		p.fault(name, "kind", fmt.Sprintf("unknown kind %q of apiVersion %q", meta.Kind, meta.APIVersion))
	}
}

func (p *parser) suspect(k key) {
	if k.name == "" {
		p.incomplete = true
	}
	p.suspects[cluster.Key{Namespace: k.namespace, Name: k.name}] = true
	if k.namespace == "" {
		p.suspects[cluster.Key{Namespace: corev1.NamespaceDefault, Name: k.name}] = true
	}
}

// list reads the objects of a List.
func (p *parser) list(name, kind string, raw []byte) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		p.incomplete = true
		f := cluster.Fault(err)
		p.fault(name, f.Field, f.Reason)
		return
	}
	for i, item := range list.Items {
		p.under = fmt.Sprintf("items[%d]", i)
		p.object(fmt.Sprintf("%s item %d", name, i+1), item, kind)
	}
}

// decode reads an object of a kind that has a table, strictly.
func decode[R any](p *parser, name string, k key, read func() (*R, cluster.FieldErrors)) {
	if p.status && k.kind != "Pod" {
		p.fault(name, "kind", "only Pods belong under "+statusDir)
		return
	}
	row, faults := read()
	for _, f := range faults {
		p.fault(name, f.Field, f.Reason)
	}
	d := document{key: k}
	switch {
	case row == nil:
	case len(faults) == 0:
		d.row = row
	default:
		d.closed = row
	}
	if k.name == "" {
		p.incomplete = true // it could be any of the objects before
		return
	}
	p.docs = append(p.docs, d)
}
