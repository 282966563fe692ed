package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"myelin/test/policy/reference"
)

// Add reads YAML documents into a world. Reading is strict. An error names the
// document by its place, from 1, the object, and what is wrong with it.
func Add(w *reference.World, text []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = add(w, document)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func add(w *reference.World, document []byte) error {
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	var err error
	switch head.Kind {
	case "":
		if len(bytes.TrimSpace(document)) > 0 && !comment(document) {
			err = errors.New("no kind")
		}
	case "Namespace":
		err = read(document, &w.Namespaces)
	case "Pod":
		err = read(document, &w.Pods)
	case "Node":
		err = read(document, &w.Nodes)
	case "Service":
		err = read(document, &w.Services)
	case "EndpointSlice":
		err = read(document, &w.EndpointSlices)
	case "NetworkPolicy":
		err = read(document, &w.NetworkPolicies)
	case "CiliumNetworkPolicy":
		err = read(document, &w.CiliumNetworkPolicies)
	case "CiliumClusterwideNetworkPolicy":
		err = read(document, &w.CiliumClusterwideNetworkPolicies)
	case "CiliumCIDRGroup":
		err = read(document, &w.CIDRGroups)
	case "ClusterNetworkPolicy":
		err = read(document, &w.ClusterNetworkPolicies)
	default:
		err = errors.New("no such kind here")
	}
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", head.Kind, head.Namespace, head.Name, err)
	}
	return nil
}

// comment is true for a document of comments alone.
func comment(document []byte) bool {
	var value any
	return yaml.Unmarshal(document, &value) == nil && value == nil
}

func read[T any](document []byte, list *[]*T) error {
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	*list = append(*list, object)
	return nil
}
