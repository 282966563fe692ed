package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// schema is part of an OpenAPI schema, as YAML has it.
type schema map[string]any

// source is Go types, by name.
type source map[string]*ast.TypeSpec

// readTypes adds the struct types of a folder.
func (s source) read(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return fmt.Errorf("look for types in %s: %w", dir, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read types: %w", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return fmt.Errorf("read types: %w", err)
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, spec := range g.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok {
						t.Doc = g.Doc
						s[t.Name.Name] = t
					}
				}
			}
		}
	}
	return nil
}

// maker makes schemas of a kind's types.
type maker struct {
	source
	kind string
	// used are the rules that were, by name.
	used map[string]bool
}

// object makes the schema of a struct type.
func (m *maker) object(name string) schema {
	spec, ok := m.source[name]
	if !ok {
		panic("no type " + name)
	}
	properties, required := schema{}, []any{}
	m.fields(spec, properties, &required)
	out := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	if text := sentence(spec.Doc); text != "" {
		out["description"] = text
	}
	m.apply(out, name)
	return out
}

func (m *maker) fields(spec *ast.TypeSpec, properties schema, required *[]any) {
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		panic(spec.Name.Name + " is no struct")
	}
	for _, f := range st.Fields.List {
		name, options := tag(f)
		if name == "" { // inline
			if id, ok := f.Type.(*ast.Ident); ok {
				m.fields(m.source[id.Name], properties, required)
				continue
			}
			properties["apiVersion"], properties["kind"] = schema{"type": "string"}, schema{"type": "string"}
			continue
		}
		p := m.field(spec.Name.Name, name, f.Type)
		if text := sentence(f.Doc); text != "" {
			// Comments begin with Go's name of what they are about.
			if rest, ok := strings.CutPrefix(text, f.Names[0].Name+" "); ok {
				text = name + " " + rest
			}
			p["description"] = text
		}
		m.apply(p, spec.Name.Name+"."+name)
		properties[name] = p
		if options == "" && name != "metadata" {
			*required = append(*required, name)
		}
	}
}

// field is a field's own, or that of what a raw text holds.
func (m *maker) field(of, name string, t ast.Expr) schema {
	if text(t) == "json.RawMessage" {
		return m.object("PolicyStatus")
	}
	if of == m.kind && name == "specs" {
		return schema{"type": "array", "items": m.object("Rule")}
	}
	return m.of(t)
}

// of makes the schema of a type.
func (m *maker) of(t ast.Expr) schema {
	switch t := t.(type) {
	case *ast.StarExpr:
		return m.of(t.X)
	case *ast.ArrayType:
		return schema{"type": "array", "items": m.of(t.Elt)}
	case *ast.MapType:
		return schema{"type": "object", "additionalProperties": m.of(t.Value)}
	}
	switch name := text(t); name {
	case "string":
		return schema{"type": "string"}
	case "bool":
		return schema{"type": "boolean"}
	case "int32":
		return schema{"type": "integer", "format": "int32"}
	case "int64":
		return schema{"type": "integer", "format": "int64"}
	case "uint8":
		return schema{"type": "integer", "minimum": 0, "maximum": 255}
	case "metav1.ObjectMeta":
		return schema{"type": "object"}
	case "metav1.LabelSelector":
		return labelSelector()
	case "metav1.Condition":
		return condition()
	case "intstr.IntOrString":
		return schema{"x-kubernetes-int-or-string": true, "anyOf": []any{schema{"type": "integer"},
			schema{"type": "string"}}}
	default:
		return m.object(name)
	}
}

// text is a type's name with its package.
func text(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.SelectorExpr:
		return text(t.X) + "." + t.Sel.Name
	}
	return ""
}

// tag is a field's name in JSON, and its options.
func tag(f *ast.Field) (name, options string) {
	if f.Tag == nil {
		panic("a field without a tag")
	}
	name, options, _ = strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
	return name, options
}

// sentence is a comment in one line.
func sentence(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

func labelSelector() schema {
	str := schema{"type": "string"}
	return schema{
		"type": "object", "x-kubernetes-map-type": "atomic",
		"properties": schema{
			"matchLabels": schema{"type": "object", "additionalProperties": schema{"type": "string", "maxLength": 63}},
			"matchExpressions": schema{"type": "array", "items": schema{
				"type": "object", "required": []any{"key", "operator"},
				"properties": schema{
					"key": str, "values": schema{"type": "array", "items": str},
					"operator": schema{"type": "string", "enum": []any{"In", "NotIn", "Exists", "DoesNotExist"}},
				},
			}},
		},
	}
}

func condition() schema {
	str := schema{"type": "string"}
	return schema{
		"type": "object", "required": []any{"type", "status"},
		"properties": schema{
			"type": str, "reason": str, "message": str, "status": schema{"type": "string",
				"enum": []any{"True", "False", "Unknown"}},
			"lastTransitionTime": schema{"type": "string", "format": "date-time"},
			"observedGeneration": schema{"type": "integer", "format": "int64"},
		},
	}
}
