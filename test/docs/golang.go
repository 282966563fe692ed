package docstest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// goModule has the exported names of the tree's own packages, against which snippets are checked.
type goModule struct {
	packages map[string]*names
	// methods are the methods of all types and interfaces, by name.
	methods map[string][]call
}

// names has the names of one package, and its fields by type.
type names struct {
	declared map[string]bool
	calls    map[string]call
	fields   map[string]map[string]bool
}

// call is the number of arguments that a function takes; most is -1 for a variadic function.
type call struct{ least, most int }

func (c call) takes(n int) bool { return n >= c.least && (c.most < 0 || n <= c.most) }

// readModule reads the Go files among the tree's files.
func readModule(root string, files []string) (*goModule, error) {
	m := &goModule{packages: map[string]*names{}, methods: map[string][]call{}}
	for _, file := range files {
		if path.Ext(file) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		m.add(parsed)
	}
	return m, nil
}

// Declares reports whether any package declares the name.
func (m *goModule) Declares(name string) bool {
	for _, p := range m.packages {
		if p.declared[name] {
			return true
		}
	}
	return false
}

func (m *goModule) add(file *ast.File) {
	p := m.packages[file.Name.Name]
	if p == nil {
		p = &names{declared: map[string]bool{}, calls: map[string]call{}, fields: map[string]map[string]bool{}}
		m.packages[file.Name.Name] = p
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				m.methods[d.Name.Name] = append(m.methods[d.Name.Name], callOf(d.Type))
				continue
			}
			p.declared[d.Name.Name] = true
			p.calls[d.Name.Name] = callOf(d.Type)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				m.spec(p, spec)
			}
		}
	}
}

func (m *goModule) spec(p *names, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			p.declared[name.Name] = true
		}
	case *ast.TypeSpec:
		p.declared[s.Name.Name] = true
		fields := map[string]bool{}
		var list *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			list = t.Fields
		case *ast.InterfaceType:
			list = t.Methods
		default:
			return
		}
		for _, field := range list.List {
			for _, name := range field.Names {
				fields[name.Name] = true
				if f, ok := field.Type.(*ast.FuncType); ok {
					m.methods[name.Name] = append(m.methods[name.Name], callOf(f))
				}
			}
		}
		p.fields[s.Name.Name] = fields
	}
}

func callOf(f *ast.FuncType) call {
	var c call
	for _, field := range f.Params.List {
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			return call{c.least, -1}
		}
		c.least += max(1, len(field.Names))
	}
	c.most = c.least
	return c
}

// Snippet returns the errors in a Go snippet's use of the tree's packages. ok is false if the text is not Go.
func (m *goModule) Snippet(lines []string) (wrong []string, ok bool) {
	text := strings.Join(lines, "\n")
	text = strings.NewReplacer("{ ... }", "{}", "{ … }", "{}", ", ...}", "}").Replace(text)
	body, inner := "package p\n"+text+"\n", false
	file, err := parser.ParseFile(token.NewFileSet(), "", body, parser.SkipObjectResolution)
	if err != nil {
		file, err = parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+text+"\n}\n",
			parser.SkipObjectResolution)
		inner = true
	}
	if err != nil || !inner && len(file.Decls) == 0 {
		return nil, false
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.SelectorExpr:
			// A variable may have the name of a package: then a method follows.
			if of, p := m.packageOf(x.X); p != nil && !p.declared[x.Sel.Name] && m.methods[x.Sel.Name] == nil {
				wrong = append(wrong, fmt.Sprintf("there is no %s.%s", of, x.Sel.Name))
			}
		case *ast.CompositeLit:
			wrong = append(wrong, m.literal(x)...)
		case *ast.CallExpr:
			wrong = append(wrong, m.call(x)...)
		}
		return true
	})
	return wrong, true
}

// packageOf returns the package that an expression names, if it is one of the tree's.
func (m *goModule) packageOf(x ast.Expr) (string, *names) {
	name, ok := x.(*ast.Ident)
	if !ok {
		return "", nil
	}
	return name.Name, m.packages[name.Name]
}

func (m *goModule) literal(x *ast.CompositeLit) (wrong []string) {
	sel, ok := x.Type.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	_, p := m.packageOf(sel.X)
	if p == nil || p.fields[sel.Sel.Name] == nil {
		return nil
	}
	for _, element := range x.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key, ok := pair.Key.(*ast.Ident); ok && !p.fields[sel.Sel.Name][key.Name] {
			wrong = append(wrong, fmt.Sprintf("%s.%s has no field %s", exprName(sel.X), sel.Sel.Name, key.Name))
		}
	}
	return wrong
}

// call checks the number of arguments of a function, or that a type has such a method.
func (m *goModule) call(x *ast.CallExpr) []string {
	sel, ok := x.Fun.(*ast.SelectorExpr)
	if !ok || x.Ellipsis.IsValid() {
		return nil
	}
	if of, p := m.packageOf(sel.X); p != nil && (p.declared[sel.Sel.Name] || m.methods[sel.Sel.Name] == nil) {
		if c, ok := p.calls[sel.Sel.Name]; ok && !c.takes(len(x.Args)) {
			return []string{fmt.Sprintf("%s.%s does not take %d arguments", of, sel.Sel.Name, len(x.Args))}
		}
		return nil
	}
	if isForeign(sel) {
		return nil
	}
	methods := m.methods[sel.Sel.Name]
	if len(methods) == 0 {
		return []string{fmt.Sprintf("no type of the tree has a method %s", sel.Sel.Name)}
	}
	for _, c := range methods {
		if c.takes(len(x.Args)) {
			return nil
		}
	}
	return []string{fmt.Sprintf("no method %s takes %d arguments", sel.Sel.Name, len(x.Args))}
}

// isForeign reports whether a call belongs to the standard library or another module, as far as the tree's snippets use
// them: packages, and methods of statedb's tables and of BPF maps.
func isForeign(sel *ast.SelectorExpr) bool {
	return regexp.MustCompile(`^(fmt|errors|os|skel|time|netip)$`).MatchString(exprName(sel.X)) ||
		regexp.MustCompile(`^(ReadTxn|All|Get|List|Put)$`).MatchString(sel.Sel.Name)
}

func exprName(x ast.Expr) string {
	if name, ok := x.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
