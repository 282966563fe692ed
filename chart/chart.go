// Package chart holds the Helm chart of Myelin, and renders it without Helm. The templates keep to the functions that
// Render has, and a test proves that Helm renders them alike.
package chart

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

//go:embed all:myelin
var files embed.FS

// root is the chart's folder in files.
const root = "myelin"

// Options of Render.
type Options struct {
	Release   string // its name
	Namespace string
	// Version takes the place of the chart's version and appVersion; empty: as they stand there.
	Version string
	// Service is what manages the objects: their label app.kubernetes.io/managed-by.
	Service string
	// Lookup is asked for what k8sServiceHost: auto needs to know. Without it no cluster is asked.
	Lookup Lookup
	// Values go over the chart's own, key by key; a nil takes a value away.
	Values map[string]any
}

// Object is one object of a rendered chart.
type Object struct {
	Template string // the file that it is from
	YAML     string
	Content  map[string]any
}

// Files are those of the chart, by their paths in it, with the version written into Chart.yaml unless it is empty.
func Files(version string) (map[string][]byte, error) {
	out := map[string][]byte{}
	err := fs.WalkDir(files, root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := files.ReadFile(name)
		out[strings.TrimPrefix(name, root+"/")] = data
		return err
	})
	if version != "" {
		out["Chart.yaml"] = bytes.ReplaceAll(out["Chart.yaml"], []byte("ersion: 0.0.0"), []byte("ersion: "+version))
	}
	return out, err
}

// Render makes the chart's objects, hooks among them, in the order of their files. Values are checked first.
func Render(o Options) ([]Object, error) {
	all, err := Files(o.Version)
	if err != nil {
		return nil, err
	}
	values, err := mergeDefaults(all["values.yaml"], o.Values)
	if err != nil {
		return nil, err
	}
	if err := checkValues(values); err != nil {
		return nil, err
	}
	var about map[string]any
	if err := yaml.Unmarshal(all["Chart.yaml"], &about); err != nil {
		return nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	t, err := parse(all, o.Lookup)
	if err != nil {
		return nil, err
	}
	data := map[string]any{
		"Values": values, "Files": contents(all),
		"Chart": map[string]any{"Name": about["name"], "Version": about["version"],
			"AppVersion": about["appVersion"]},
		"Release": map[string]any{"Name": o.Release, "Namespace": o.Namespace, "Service": o.Service},
	}
	var objects []Object
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "templates/") || path.Ext(name) != ".yaml" {
			continue
		}
		var text bytes.Buffer
		if err := t.ExecuteTemplate(&text, name, data); err != nil {
			return nil, fmt.Errorf("render the chart: %w", err)
		}
		list, err := split(name, text.String())
		if err != nil {
			return nil, err
		}
		objects = append(objects, list...)
	}
	return objects, nil
}

// contents are the chart's files for templates, by Get.
type contents map[string][]byte

// Get is a file's text, empty if there is none, as with Helm.
func (c contents) Get(name string) string { return string(c[name]) }

func parse(all map[string][]byte, find Lookup) (*template.Template, error) {
	t := template.New(root).Option("missingkey=zero")
	t.Funcs(functions(t))
	t.Funcs(searching(find))
	for name, data := range all {
		if !strings.HasPrefix(name, "templates/") {
			continue
		}
		if _, err := t.New(name).Parse(string(data)); err != nil {
			return nil, fmt.Errorf("read the chart: %w", err)
		}
	}
	return t, nil
}

// functions are what templates may use beside those of text/template: each does what Helm's of that name does.
func functions(t *template.Template) template.FuncMap {
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var out strings.Builder
			err := t.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"toYaml": func(v any) (string, error) {
			data, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(data), "\n"), err
		},
		"nindent": func(n int, text string) string {
			pad := strings.Repeat(" ", n)
			return "\n" + pad + strings.ReplaceAll(text, "\n", "\n"+pad)
		},
		"quote": func(v any) string {
			if v == nil {
				return ""
			}
			return fmt.Sprintf("%q", fmt.Sprint(v))
		},
		"default": func(def, v any) any {
			if truth, _ := template.IsTrue(v); truth {
				return v
			}
			return def
		},
		"omit": func(m map[string]any, keys ...string) map[string]any {
			out := maps.Clone(m)
			for _, k := range keys {
				delete(out, k)
			}
			return out
		},
		"dict":      pairs,
		"int":       whole,
		"mul":       func(a, b any) int64 { return int64(whole(a)) * int64(whole(b)) },
		"toString":  func(v any) string { return fmt.Sprint(v) },
		"fail":      func(text string) (string, error) { return "", errors.New(text) },
		"sha256sum": func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
	}
}

// pairs makes a map of keys and values that follow each other.
func pairs(list ...any) (map[string]any, error) {
	m := map[string]any{}
	for ; len(list) > 1; list = list[2:] {
		m[fmt.Sprint(list[0])] = list[1]
	}
	if len(list) > 0 {
		return nil, fmt.Errorf("dict: no value for %v", list[0])
	}
	return m, nil
}

// whole is a number of values as an int.
func whole(v any) int {
	switch v := v.(type) {
	case float64:
		return int(v)
	case int64:
		return int(v)
	case int:
		return v
	}
	return 0
}

// Lookup finds an object of the cluster; nothing, and no error, if there is none.
type Lookup = func(apiVersion, kind, namespace, name string) (map[string]any, error)

// searching are functions that find things: objects, and parts of texts.
func searching(find Lookup) template.FuncMap {
	if find == nil {
		find = func(string, string, string, string) (map[string]any, error) { return nil, nil }
	}
	return template.FuncMap{
		"lookup":     find,
		"trimPrefix": func(prefix, text string) string { return strings.TrimPrefix(text, prefix) },
		"regexFind": func(expression, text string) (string, error) {
			re, err := regexp.Compile(expression)
			if err != nil {
				return "", err
			}
			return re.FindString(text), nil
		},
		"regexReplaceAll": func(expression, text, by string) (string, error) {
			re, err := regexp.Compile(expression)
			if err != nil {
				return "", err
			}
			return re.ReplaceAllString(text, by), nil
		},
	}
}

// split reads the documents of a rendered template.
func split(name, text string) (objects []Object, err error) {
	for _, doc := range strings.Split("\n"+text, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		o := Object{Template: name, YAML: strings.TrimSpace(doc) + "\n"}
		if err := yaml.Unmarshal([]byte(doc), &o.Content); err != nil {
			return nil, fmt.Errorf("render %s: %w", name, err)
		}
		if len(o.Content) > 0 {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// Version is what a build calls itself, as a chart must: a semantic version, without the v of a tag. What is none is of
// version 0.0.0, and stays to be told apart: "0.0.0-dev-" and its name.
func Version(build string) string {
	v := strings.TrimPrefix(build, "v")
	if v == "" {
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, v)
	numbers, _, _ := strings.Cut(clean, "-")
	if parts := strings.Split(numbers, "."); len(parts) == 3 && !slices.ContainsFunc(parts, func(p string) bool {
		return p == "" || strings.Trim(p, "0123456789") != "" || len(p) > 1 && p[0] == '0'
	}) {
		return clean
	}
	return "0.0.0-dev-" + strings.ReplaceAll(clean, ".", "-")
}
