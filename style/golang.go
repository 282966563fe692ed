package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// importRule says where a package may be imported.
type importRule struct {
	// Path is of the package; packages below it count too unless Exact.
	Path  string
	Exact bool
	// Folders may import it; none may when empty.
	Folders []string
}

// goFile finds what is wrong in one Go file.
func goFile(name string, text []byte, imports []importRule) ([]Finding, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if f.Recv == nil && f.Name.Name == "init" {
			found = append(found, Finding{"init", name, "func init"})
		}
		if lines := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; lines > maxFunctionLines {
			found = append(found, Finding{"function-length", name, fmt.Sprintf("func %s: %d lines, at most %d",
				f.Name.Name, lines, maxFunctionLines)})
		}
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if rule := ruleOf(imported, imports); rule != nil && !rule.allows(name) {
			found = append(found, Finding{"import", name, imported})
		}
	}
	return found, nil
}

// ruleOf is the rule with the longest path that is about a package; nil if there is none.
func ruleOf(imported string, imports []importRule) *importRule {
	var longest *importRule
	for i := range imports {
		if r := &imports[i]; r.matches(imported) && (longest == nil || len(r.Path) > len(longest.Path)) {
			longest = r
		}
	}
	return longest
}

func (i *importRule) matches(imported string) bool {
	return imported == i.Path || !i.Exact && strings.HasPrefix(imported, i.Path+"/")
}

func (i *importRule) allows(name string) bool {
	return slices.ContainsFunc(i.Folders, func(folder string) bool { return strings.HasPrefix(name, folder+"/") })
}

// goPackage finds what is wrong in the files of one folder taken together: a package without a comment, and variables
// of a package that change. Keys of files are names.
func goPackage(files map[string][]byte) ([]Finding, error) {
	var found []Finding
	packages := map[string][]*ast.File{}
	folder := ""
	for name, text := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		packages[file.Name.Name] = append(packages[file.Name.Name], file)
		folder = path.Dir(name)
	}
	for name, parsed := range packages {
		commented := func(f *ast.File) bool { return f.Doc != nil && f.Doc.Text() != "" }
		if !strings.HasSuffix(name, "_test") && !testsOnly(files) && !slices.ContainsFunc(parsed, commented) {
			found = append(found, Finding{"package-comment", folder, "package " + name + " has no comment"})
		}
		for _, variable := range changing(parsed) {
			found = append(found, Finding{"package-state", folder, "var " + variable})
		}
	}
	return found, nil
}

func testsOnly(files map[string][]byte) bool {
	for name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			return false
		}
	}
	return true
}

// changing names the variables of a package that something in it changes, or whose type is made to be changed.
func changing(files []*ast.File) []string {
	declared := map[string]*ast.ValueSpec{}
	for _, file := range files {
		for _, decl := range file.Decls {
			if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.VAR {
				for _, spec := range d.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						declared[name.Name] = spec.(*ast.ValueSpec)
					}
					delete(declared, "_")
				}
			}
		}
	}
	var names []string
	for name, spec := range declared {
		if madeToChange(spec.Type) {
			names = append(names, name)
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			for _, name := range changed(node) {
				// The parser resolves what is local; what it leaves open, or resolves to the declaration, is the
				// package's.
				if spec, ok := declared[name.Name]; ok && (name.Obj == nil || name.Obj.Decl == spec) {
					names = append(names, name.Name)
				}
			}
			return true
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// madeToChange are the types of sync and sync/atomic.
func madeToChange(t ast.Expr) bool {
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	selector, ok := t.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := selector.X.(*ast.Ident)
	return ok && (from.Name == "sync" || from.Name == "atomic")
}

// changed are the variables that a statement assigns to, or to a part of.
func changed(node ast.Node) []*ast.Ident {
	var targets []ast.Expr
	switch n := node.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			targets = n.Lhs
		}
	case *ast.IncDecStmt:
		targets = []ast.Expr{n.X}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
			targets = n.Args[:1]
		}
	}
	var names []*ast.Ident
	for _, target := range targets {
		if name := base(target); name != nil {
			names = append(names, name)
		}
	}
	return names
}

// base is x of x, x.f, x[i], *x.
func base(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return base(e.X)
	case *ast.IndexExpr:
		return base(e.X)
	case *ast.StarExpr:
		return base(e.X)
	case *ast.ParenExpr:
		return base(e.X)
	}
	return nil
}
