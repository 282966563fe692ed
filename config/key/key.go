// Package key is the type of keys of the configuration file. A feature declares its
// keys in its folder; package config has the list of all of them.
package key

// Flag says what else a key depends on, or is for.
type Flag uint8

// The flags.
const (
	// NeedsCluster keys are refused on a node without a cluster.
	NeedsCluster Flag = 1 << iota
	// NeedsPolicies keys are refused where no policy is enforced.
	NeedsPolicies
	// UsesXDP keys give XDP work on wires.
	UsesXDP
)

// Key is a key of the file whose value is in a C. Its default is that of C.
type Key[C any] struct {
	Name string // as in Cilium's Helm values, or below "myelin."
	// Set checks a value, of JSON's types with numbers as json.Number, and stores it.
	Set func(*C, any) error
	// Get is the value as text.
	Get func(*C) string
	// Schema is what of Set JSON Schema can say: it takes whatever Set takes.
	Schema Schema
	// Unused returns why the key has no effect, empty if it has one; nil: it always has.
	Unused func(*C) string
	Flags  Flag
}

func newKey[C any](name string, set func(*C, any) error, get func(*C) string, schema Schema) Key[C] {
	return Key[C]{Name: name, Set: set, Get: get, Schema: schema}
}

// With is the key with flags.
func (k Key[C]) With(f Flag) Key[C] {
	k.Flags |= f
	return k
}

// If is the key with no effect unless on is true; otherwise is why not.
func (k Key[C]) If(on func(*C) bool, otherwise string) Key[C] {
	k.Unused = func(c *C) string {
		if on(c) {
			return ""
		}
		return otherwise
	}
	return k
}

// Within makes keys of C of those of a part of it.
func Within[C, P any](part func(*C) *P, keys []Key[P]) []Key[C] {
	list := make([]Key[C], len(keys))
	for i, k := range keys {
		list[i] = Key[C]{
			Name: k.Name, Schema: k.Schema, Flags: k.Flags,
			Set: func(c *C, v any) error { return k.Set(part(c), v) },
			Get: func(c *C) string { return k.Get(part(c)) },
		}
		if k.Unused != nil {
			list[i].Unused = func(c *C) string { return k.Unused(part(c)) }
		}
	}
	return list
}

// Add reports values that are wrong together: a key, and why.
type Add func(key, format string, args ...any)
