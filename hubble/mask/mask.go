// Package mask cuts flows down to some of their fields.
package mask

import (
	"fmt"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Mask is a set of fields of flows.
type Mask struct{ fields fields }

// fields of a message; one without fields of its own is taken whole.
type fields map[protoreflect.Name]fields

// New makes a mask of paths such as "source.pod_name". The error names the path.
func New(paths []string) (*Mask, error) {
	m := &Mask{fields: fields{}}
	for _, p := range paths {
		if err := m.add(p); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Mask) add(path string) error {
	at, message := m.fields, (&flowpb.Flow{}).ProtoReflect().Descriptor()
	names := strings.Split(path, ".")
	for i, name := range names {
		if message == nil {
			return fmt.Errorf("%q: %s has no fields", path, strings.Join(names[:i], "."))
		}
		field := message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return fmt.Errorf("%q: %s has no field %q", path, message.Name(), name)
		}
		inner, had := at[field.Name()]
		switch {
		case had && len(inner) == 0: // the whole is in it
			return nil
		case i == len(names)-1:
			at[field.Name()] = fields{}
			return nil
		case !had:
			inner = fields{}
			at[field.Name()] = inner
		}
		at, message = inner, nil
		if !field.IsList() && !field.IsMap() {
			message = field.Message()
		}
	}
	return nil
}

// All reports whether the mask has no paths, which stands for all fields.
func (m *Mask) All() bool { return len(m.fields) == 0 }

// Cut returns a flow with the fields of the mask. Parts are shared with f, which
// is f itself where the mask is All.
func (m *Mask) Cut(f *flowpb.Flow) *flowpb.Flow {
	if m.All() {
		return f
	}
	out := &flowpb.Flow{}
	m.fields.copy(out.ProtoReflect(), f.ProtoReflect())
	return out
}

func (fs fields) copy(to, from protoreflect.Message) {
	known := from.Descriptor().Fields()
	for name, inner := range fs {
		field := known.ByName(name)
		if !from.Has(field) {
			continue
		}
		if len(inner) == 0 {
			to.Set(field, from.Get(field))
			continue
		}
		inner.copy(to.Mutable(field).Message(), from.Get(field).Message())
	}
}
