package style

import (
	"fmt"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// directModules finds the modules of go.mod that Go files import themselves, whatever go.mod's comments say.
func directModules(gomod []byte, files map[string][]byte) ([]string, error) {
	required := requires(string(gomod))
	var direct []string
	for name, text := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, err
			}
			if module := moduleOf(imported, required); module != "" {
				direct = append(direct, module)
			}
		}
	}
	slices.Sort(direct)
	return slices.Compact(direct), nil
}

// moduleOf is the longest required module that holds a package; empty for the standard library and this module.
func moduleOf(imported string, required []string) string {
	longest := ""
	for _, module := range required {
		if (imported == module || strings.HasPrefix(imported, module+"/")) && len(module) > len(longest) {
			longest = module
		}
	}
	return longest
}

func requires(gomod string) []string {
	var modules []string
	block := false
	for line := range strings.Lines(gomod) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "require" && words[1] == "(":
			block = true
		case len(words) == 1 && words[0] == ")":
			block = false
		case block && len(words) == 2:
			modules = append(modules, words[0])
		case len(words) == 3 && words[0] == "require":
			modules = append(modules, words[1])
		}
	}
	return modules
}

// unlisted compares the modules that the tree uses with those that are listed, both ways.
func unlisted(direct, listed []string) []Finding {
	var found []Finding
	for _, module := range direct {
		if !slices.Contains(listed, module) {
			found = append(found, Finding{"dependency", "go.mod", fmt.Sprintf("%s is not in style/dependencies.txt",
				module)})
		}
	}
	for _, module := range listed {
		if !slices.Contains(direct, module) {
			found = append(found, Finding{"dependency", "style/dependencies.txt",
				fmt.Sprintf("nothing imports %s", module)})
		}
	}
	return found
}
