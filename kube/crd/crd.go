// Package crd has the CustomResourceDefinitions of Cilium's kinds that Myelin acts
// on, with schemas of its own, and the Go types of those that are no policies.
package crd

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:generate go run ./generate

//go:embed *.yaml
var files embed.FS

// Labels of a definition: whose schema it has, and which. A server's definition is
// replaced by one of a higher version, never by one of a lower.
const (
	VersionLabel = "myelin.io/crd-schema-version"
	// CiliumLabel is the label that Cilium gives its own.
	CiliumLabel = "io.cilium.k8s.crd.schema.version"
)

// Version is that of the schemas. It goes up with each change of one.
const Version = "1.0.0"

// Objects are the definitions, as JSON has them, by name; each is the caller's own.
// An error can only come of a file that is no YAML.
func Objects() ([]map[string]any, error) {
	names, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	var all []map[string]any
	for _, name := range names {
		text, err := files.ReadFile(name.Name())
		if err != nil {
			return nil, fmt.Errorf("read a definition: %w", err)
		}
		var object struct {
			APIVersion string         `json:"apiVersion"`
			Kind       string         `json:"kind"`
			Metadata   map[string]any `json:"metadata"`
			Spec       map[string]any `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &object); err != nil {
			return nil, fmt.Errorf("read %s: %w", name.Name(), err)
		}
		object.Metadata["labels"] = map[string]any{VersionLabel: Version}
		all = append(all, map[string]any{"apiVersion": object.APIVersion, "kind": object.Kind,
			"metadata": object.Metadata, "spec": object.Spec})
	}
	return all, nil
}

// YAML is all of them as a stream of documents.
func YAML() ([]byte, error) {
	objects, err := Objects()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("write definitions: %w", err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}

// Newer reports whether version a, numbers with dots, is higher than b. What is no
// version is the lowest.
func Newer(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) > 0
}

func numbers(version string) (list []int) {
	for _, part := range strings.Split(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}
