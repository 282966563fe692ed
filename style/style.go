// Package style holds the tree's own rules as functions from text to findings; its test runs them over every file.
package style

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of hand-written Go and C.
const (
	MaxFileLines     = 400
	MaxFunctionLines = 60
)

// Finding is one breach of a rule in a file. It has no line numbers: an exception must survive edits.
type Finding struct {
	Rule, File, Text string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.File, f.Rule, f.Text) }

// Covers reports whether a row with a rule and a path is about a finding. A path that ends in a slash is a folder's.
func Covers(rule, file string, f Finding) bool {
	return rule == f.Rule && (file == f.File || strings.HasSuffix(file, "/") && strings.HasPrefix(f.File, file))
}

// Files lists the files of the tree at root by slash path: those that git has, or would have after an add.
func Files(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", root, err)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if info, err := os.Lstat(filepath.Join(root, name)); name != "" && err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// Generated says whether a file was written by a program: such files are not held to the rules.
func Generated(text []byte) bool {
	head, _, _ := bytes.Cut(append([]byte("\n"), text...), []byte("\npackage "))
	return bytes.Contains(head, []byte("\n// Code generated "))
}

// Length finds a file that is too long to be read in one go.
func Length(name string, text []byte) []Finding {
	if lines := bytes.Count(text, []byte("\n")); lines > MaxFileLines {
		return []Finding{{"file-length", name, fmt.Sprintf("%d lines, at most %d", lines, MaxFileLines)}}
	}
	return nil
}

// Forbidden finds strings that must not occur in the tree, such as paths of the machine that a file was written on.
func Forbidden(name string, content []byte, forbidden []string) []Finding {
	var found []Finding
	for _, text := range forbidden {
		if bytes.Contains(content, []byte(text)) {
			found = append(found, Finding{"forbidden", name, text})
		}
	}
	return found
}

// Folders finds top-level folders with code that have no README, or one that is no man page.
func Folders(files []string, read func(name string) ([]byte, error)) []Finding {
	var found []Finding
	for _, folder := range codeFolders(files) {
		readme := folder + "/README.md"
		text, err := read(readme)
		if err != nil {
			found = append(found, Finding{"readme", readme, "missing"})
			continue
		}
		for _, heading := range []string{"## NAME", "## DESCRIPTION"} {
			if !bytes.Contains(text, []byte(heading+"\n")) {
				found = append(found, Finding{"readme", readme, "no " + heading})
			}
		}
	}
	return found
}

func codeFolders(files []string) []string {
	var folders []string
	for _, name := range files {
		top, _, deep := strings.Cut(name, "/")
		if deep && slices.Contains([]string{".go", ".c", ".h", ".sh"}, filepath.Ext(name)) {
			folders = append(folders, top)
		}
	}
	slices.Sort(folders)
	return slices.DeleteFunc(slices.Compact(folders), func(folder string) bool { return folder == "cmd" })
}

// Rows reads a table of rules: a row a line, fields by white space, the last one the rest of the line; # begins a
// comment. A row with fewer fields is an error: each has to give its reason.
func Rows(path string, fields int) ([][]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var row []string
		for range fields - 1 {
			first, rest, _ := strings.Cut(line, " ")
			row, line = append(row, first), strings.TrimSpace(rest)
		}
		if line == "" {
			return nil, fmt.Errorf("%s: %q: %d fields are wanted", path, strings.Join(row, " "), fields)
		}
		rows = append(rows, append(row, line))
	}
	return rows, nil
}
