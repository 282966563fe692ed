package sysdump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
	kyaml "sigs.k8s.io/yaml"
)

// lastApplied is the annotation that holds the whole object once more, as text.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// object takes secrets out of a value as encoding/json decodes it. The value itself stays as it is.
func (r *Redactor) object(v any) any { return r.value("", v, false) }

// value redacts v, which stands under a name. In a secret's place all text and numbers go.
func (r *Redactor) value(name string, v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		return r.fields(v, secret)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = r.value(name, v[i], secret)
		}
		return list
	case string:
		if secret && !harmless(v) {
			return redacted
		}
		if strings.Contains(strings.ToLower(name), "pub") && keyShape.FindString(v) == v {
			return v // a public key
		}
		return r.text(v)
	case nil, bool:
		return v
	}
	if secret {
		return redacted // a number
	}
	return v
}

func (r *Redactor) fields(m map[string]any, secret bool) map[string]any {
	out := make(map[string]any, len(m))
	kind, _ := m["kind"].(string)
	for name, v := range m {
		hide := secret || secretName(name)
		switch {
		case kind == "Secret" && (name == "data" || name == "stringData" || name == "immutableData"):
			hide = true
		case name == lastApplied:
			v, hide = redacted, false
		case name == "value" && (named(m["name"]) || named(m["key"])): // of a variable, a header or a setting
			hide = true
		case secret && (name == "name" || name == "key"), plain(name):
			hide = false // a reference says where a secret is
		}
		out[r.replacer.Replace(name)] = r.value(name, v, hide)
	}
	return out
}

func named(name any) bool {
	text, ok := name.(string)
	return ok && secretName(text)
}

func plain(name string) bool { return plainNames.MatchString(strings.ToLower(name)) }

// json redacts a JSON document, and indents it.
func (r *Redactor) json(data []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(r.object(v))
	return b.Bytes(), err
}

// yaml redacts the documents of a file. Comments, which may hold anything, are left out.
func (r *Redactor) yaml(data []byte) ([]byte, error) {
	var b bytes.Buffer
	docs := yaml.NewYAMLReader(newReader(data))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return b.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		var v any
		if err := kyaml.Unmarshal(doc, &v); err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		text, err := kyaml.Marshal(r.object(v))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
}

// learnSecrets learns the values of the Secret objects in YAML, so that they are found wherever else they stand. What
// can't be read teaches nothing.
func (r *Redactor) learnSecrets(data []byte) {
	docs := yaml.NewYAMLReader(newReader(data))
	for {
		doc, err := docs.Read()
		if err != nil {
			return
		}
		var object struct {
			Kind       string            `json:"kind"`
			Data       map[string][]byte `json:"data"`
			StringData map[string]string `json:"stringData"`
		}
		if kyaml.Unmarshal(doc, &object) != nil || object.Kind != "Secret" {
			continue
		}
		for _, v := range object.Data {
			r.learn(string(v))
		}
		for _, v := range object.StringData {
			r.learn(v)
		}
	}
}
