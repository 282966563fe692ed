package cluster

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Secret is a Secret that rules of policies may name. Its data is in no output: neither TableRow nor JSON has it.
type Secret struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Data      map[string][]byte `json:"-"`
	// Keys are those of Data, sorted.
	Keys   []string `json:"keys"`
	Source string   `json:"source,omitempty"`
}

// Key names the Secret.
func (s *Secret) Key() Key { return Key{Namespace: s.Namespace, Name: s.Name} }

// Equal reports whether two rows say the same.
func (s *Secret) Equal(o *Secret) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.Source == o.Source &&
		maps.EqualFunc(s.Data, o.Data, bytes.Equal)
}

// TableHeader names the columns of TableRow.
func (*Secret) TableHeader() []string { return []string{"Namespace", "Name", "Keys", "Source"} }

// TableRow is the row as text.
func (s *Secret) TableRow() []string {
	return []string{s.Namespace, s.Name, strings.Join(s.Keys, " "), s.Source}
}

// SecretByKey finds one Secret.
func SecretByKey(k Key) statedb.Query[*Secret] { return secretKeys().Query(k) }

func secretKeys() statedb.Index[*Secret, Key] {
	return statedb.Index[*Secret, Key]{
		Name:       "key",
		FromObject: func(s *Secret) index.KeySet { return index.NewKeySet(index.Stringer(s.Key())) },
		FromKey:    index.Stringer[Key],
		FromString: index.FromString,
		Unique:     true,
	}
}

// FromSecret makes a row of a Secret; errors as FromNode's. As at an API server, stringData overrides data. A Secret
// without a namespace is in "default", as kubectl has it.
func FromSecret(secret *corev1.Secret, source string) (*Secret, error) {
	var c checker
	row := &Secret{Namespace: secret.Namespace, Name: secret.Name, Data: maps.Clone(secret.Data), Source: source}
	if row.Namespace == "" {
		row.Namespace = corev1.NamespaceDefault
	}
	c.name("metadata.name", row.Name, validation.IsDNS1123Subdomain)
	c.name("metadata.namespace", row.Namespace, validation.IsDNS1123Label)
	if err := c.err(); err != nil {
		return nil, err
	}
	if row.Data == nil {
		row.Data = map[string][]byte{}
	}
	for key, text := range secret.StringData {
		row.Data[key] = []byte(text)
	}
	row.Keys = slices.Sorted(maps.Keys(row.Data))
	return row, nil
}
