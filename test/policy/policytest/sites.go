package policytest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Site is a place in package parse where something of a policy is rejected.
type Site struct {
	// Func is the function, and Call what it calls: one of the reader's that note
	// what is wrong, or what is not enforced.
	Func, Call string
	// Field ends the field's path, as far as the call says it, and Format is the
	// reason's; empty where the call has none.
	Field, Format string
}

// String is as in `ciliumPort add .endPort "must not be set"`.
func (s Site) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s", s.Func, s.Call, s.Field, s.Format)), " ")
}

// Sites are all of them, found in the code below dir.
func Sites(t testing.TB, dir string) (out []Site) {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), dir,
		func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
	check(t, err)
	for _, file := range packages["parse"].Files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if s := siteOf(f.Name.Name, call); s != nil && !slices.Contains(out, *s) {
						out = append(out, *s)
					}
				}
				return true
			})
		}
	}
	slices.SortFunc(out, func(a, b Site) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// siteOf is a call of one of the reader's functions that take a field first; nil: it
// is of another. Those that hand a field on that they got say nothing new.
func siteOf(in string, call *ast.CallExpr) *Site {
	f, ok := call.Fun.(*ast.SelectorExpr)
	notes := []string{"add", "unenforced", "notSupported", "name", "valid", "prefix", "protocol", "port", "endPort",
		"optional", "atMost", "label"}
	if !ok || len(call.Args) == 0 || !slices.Contains(notes, f.Sel.Name) {
		return nil
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "r" {
		return nil
	}
	s := &Site{Func: in, Call: f.Sel.Name}
	if field := literals(call.Args[0]); len(field) > 0 {
		s.Field = field[len(field)-1]
	}
	if len(call.Args) > 1 && (s.Call == "add" || s.Call == "unenforced") {
		s.Format = strings.Join(literals(call.Args[1]), "")
	}
	return s
}

// literals are the texts in an expression.
func literals(e ast.Expr) (out []string) {
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				out = append(out, text)
			}
		}
		return true
	})
	return out
}

// kinds are those whose objects a function reads; nil: all.
func (s Site) kinds() []string {
	for _, of := range []struct{ prefixes, kinds string }{
		{"network ipBlock policyTypes", "NetworkPolicy"},
		{"cluster namedPorts networks", "ClusterNetworkPolicy"},
		{"cilium cidrRule entityPeers servicePeer icmp l7 httpRule regexp headerMatch secret tlsContext fqdn " +
			"serverName namesPeers authenticated prefixPeers",
			"CiliumNetworkPolicy CiliumClusterwideNetworkPolicy"},
		{"CIDRGroup", "CiliumCIDRGroup"},
	} {
		for _, prefix := range strings.Fields(of.prefixes) {
			if strings.HasPrefix(s.Func, prefix) && (s.Func != "networks" || prefix == "networks") {
				return strings.Fields(of.kinds)
			}
		}
	}
	return nil
}

// reason is what the site says, as a regular expression.
func (s Site) reason() string {
	if s.Format != "" {
		return regexp.MustCompile(`%[a-z]`).ReplaceAllString(regexp.QuoteMeta(s.Format), ".*")
	}
	return map[string]string{
		"atMost": "has .* items.*", "protocol": ".* is none of .*", "port": ".* is not in .*",
		"endPort": ".*(is not in|is less than).*",
		"prefix":  ".* is not a CIDR .*", "notSupported": ".* is not supported", "name": "must be set|\".*",
		"valid": "\".*", "optional": "\".*",
		"label": "\".*|key .*",
	}[s.Call]
}

// Noted reports whether what was found of an object of a kind, as "field: reason",
// may be of the site.
func (s Site) Noted(kind, found string) bool {
	if kinds := s.kinds(); kinds != nil && !slices.Contains(kinds, kind) {
		return false
	}
	field, reason, _ := strings.Cut(found, ": ")
	index := regexp.MustCompile(`\[[^]]*\]?`)
	end := index.ReplaceAllString(s.Field, "")
	return strings.HasSuffix(index.ReplaceAllString(field, ""), strings.TrimRight(end, ".]")) &&
		regexp.MustCompile("^("+s.reason()+")$").MatchString(reason)
}
