package style

import (
	"bytes"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var include = regexp.MustCompile(`(?m)^#include "([^"]+)"`)

// includes finds headers that include a header of a later folder. A source file may include all.
func includes(name string, text []byte, order []string) []Finding {
	if path.Ext(name) != ".h" {
		return nil
	}
	own := slices.Index(order, path.Dir(name))
	if own < 0 {
		return []Finding{{"include", name, "style/includes.txt does not list " + path.Dir(name)}}
	}
	var found []Finding
	for _, match := range include.FindAllSubmatch(text, -1) {
		header := path.Join(path.Dir(name), string(match[1]))
		if types(header) || types(name) && header == "bpf/common.h" {
			continue
		}
		if types(name) {
			found = append(found, Finding{"include", name, header + " has more than types"})
		} else if at := slices.Index(order, path.Dir(header)); at < 0 || at > own {
			found = append(found, Finding{"include", name, header + " is of a later folder"})
		}
	}
	return found
}

var prototype = regexp.MustCompile(`(?m)^[a-z_][\w \t*]*[ \t*]([a-z]\w*)\([^(){};=]*\)\s*;`)

// prototypes finds functions that a header declares and does not define. A definition in the header of a later folder
// is a call to that folder that the order of includes does not show.
func prototypes(name string, text []byte) []Finding {
	if path.Ext(name) != ".h" {
		return nil
	}
	code := blank(string(text))
	defined := functions(code)
	var found []Finding
	for _, match := range prototype.FindAllStringSubmatch(code, -1) {
		if !slices.ContainsFunc(defined, func(f function) bool { return f.name == match[1] }) {
			found = append(found, Finding{"prototype", name, match[1] + " is defined in another file"})
		}
	}
	return found
}

// Compiler is the path of the compiler that bpf/generate.sh uses, or "" if it is not installed.
func Compiler() string {
	compiler, err := exec.LookPath("clang-19")
	if err != nil {
		return ""
	}
	return compiler
}

// SelfContained finds headers that do not compile on their own.
func SelfContained(root, compiler string, headers []string) ([]Finding, error) {
	libraries, err := filepath.Glob("/usr/include/*-linux-gnu")
	if err != nil {
		return nil, err
	}
	arguments := []string{"-target", "bpf", "-fsyntax-only", "-x", "c", "-O2", "-Wall", "-Wno-unused-function",
		"-Wno-enum-conversion", "-Wno-enum-compare",
		"-Werror"}
	for _, library := range libraries {
		arguments = append(arguments, "-I"+library)
	}
	var found []Finding
	for _, header := range headers {
		cmd := exec.Command(compiler, append(slices.Clone(arguments), header)...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		if _, ok := err.(*exec.ExitError); !ok {
			return nil, fmt.Errorf("compile %s: %w", header, err)
		}
		first, _, _ := bytes.Cut(out, []byte("\n"))
		found = append(found, Finding{"self-contained", header, strings.TrimSpace(string(first))})
	}
	return found, nil
}

// types reports whether a header has types and constants alone, which the scratch struct of a CPU is made of.
func types(header string) bool {
	base := path.Base(header)
	return base == "row.h" || base == "reason.h"
}
