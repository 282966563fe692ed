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

// unusedExports finds exported functions, types, constants and variables that no other package uses, in the Go files of
// a module, by name. What an exported declaration of the package has in its type is used with that, constants with
// those of their group; methods may be those of an interface. Names are looked up by syntax.
func unusedExports(module string, files map[string][]byte) ([]Finding, error) {
	e := exported{module: module, declared: map[string]map[string]string{}, used: map[string]bool{}}
	for name, text := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		e.uses(name, file)
		if file.Name.Name != "main" && !strings.HasSuffix(name, "_test.go") && !ast.IsGenerated(file) {
			e.declares(path.Dir(name), name, file)
		}
	}
	e.useGroups()
	var found []Finding
	for folder, names := range e.declared {
		for identifier, file := range names {
			if !e.used[folder+"."+identifier] {
				found = append(found, Finding{"exported", file,
					fmt.Sprintf("%s is used by no other package", identifier)})
			}
		}
	}
	return found, nil
}

type exported struct {
	module   string
	declared map[string]map[string]string // folder → identifier → file
	used     map[string]bool              // "folder.Identifier"
	groups   []group
}

// group is an enumeration: constants that are declared together.
type group struct {
	folder    string
	constants []string
}

// useGroups counts an enumeration as used if one of its constants is.
func (e *exported) useGroups() {
	for _, g := range e.groups {
		if !slices.ContainsFunc(g.constants, func(c string) bool { return e.used[g.folder+"."+c] }) {
			continue
		}
		for _, c := range g.constants {
			e.used[g.folder+"."+c] = true
		}
	}
}

// uses notes what a file uses of other packages of the module.
func (e *exported) uses(name string, file *ast.File) {
	folders := map[string]string{} // by the name that the file has for the package
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		folder, own := strings.CutPrefix(imported, e.module+"/")
		if err != nil || !own {
			continue
		}
		folders[path.Base(folder)] = folder
		if spec.Name != nil {
			folders[spec.Name.Name] = folder
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && folders[x.Name] != "" {
				e.used[folders[x.Name]+"."+s.Sel.Name] = true
			}
		}
		return true
	})
}

// declares notes what a file declares, and what the types of exported declarations have in them.
func (e *exported) declares(folder, name string, file *ast.File) {
	if e.declared[folder] == nil {
		e.declared[folder] = map[string]string{}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !d.Name.IsExported() {
				continue
			}
			if d.Recv == nil {
				e.declared[folder][d.Name.Name] = name
			}
			e.typeUses(folder, d.Type)
		case *ast.GenDecl:
			e.declaresGroup(folder, name, d)
		}
	}
}

// declaresGroup notes what is declared together. Constants of an exported type are left out: they are its values.
func (e *exported) declaresGroup(folder, name string, d *ast.GenDecl) {
	g := group{folder: folder}
	typed := false // as in Go, a constant without a value has the type of the one before it
	for _, s := range d.Specs {
		v, ok := s.(*ast.ValueSpec)
		if ok && d.Tok == token.CONST {
			if v.Type != nil || len(v.Values) > 0 {
				of, ok := v.Type.(*ast.Ident)
				typed = ok && of.IsExported()
			}
			if typed {
				continue
			}
			for _, n := range v.Names {
				g.constants = append(g.constants, n.Name)
			}
		}
		e.declaresSpec(folder, name, s)
	}
	e.groups = append(e.groups, g)
}

func (e *exported) declaresSpec(folder, name string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			e.declared[folder][s.Name.Name] = name
			e.typeUses(folder, s.Type)
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() {
				e.declared[folder][n.Name] = name
			}
		}
		if s.Type != nil {
			e.typeUses(folder, s.Type)
		}
	}
}

// typeUses notes the exported identifiers of the package in a type.
func (e *exported) typeUses(folder string, t ast.Node) {
	ast.Inspect(t, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			e.typeUses(folder, n.Type) // without the names of the field
			return false
		case *ast.SelectorExpr:
			return false
		case *ast.Ident:
			if n.IsExported() {
				e.used[folder+"."+n.Name] = true
			}
		}
		return true
	})
}
