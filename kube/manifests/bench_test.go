package manifests

import (
	"fmt"
	"path/filepath"
	"testing"
)

// BenchmarkPolicyInFiles changes one of 10,000 policies, each in a file of its own.
func BenchmarkPolicyInFiles(b *testing.B) {
	const n = 10000
	dir := b.TempDir()
	s := newSource(b, dir)
	for i := range n {
		write(b, filepath.Join(dir, fmt.Sprint("p", i, ".yaml")), text(fmt.Sprint("p", i), 80))
	}
	s.refresh(nil, nil)
	i := 0
	for b.Loop() {
		i++
		path := filepath.Join(dir, "p0.yaml")
		write(b, path, text("p0", 81+i%1000))
		if _, enough := s.few(map[string]bool{path: true}); !enough {
			b.Fatal("all was looked at")
		}
	}
}

// BenchmarkPolicyInFile changes the first of 10,000 policies in one file.
func BenchmarkPolicyInFile(b *testing.B) {
	const n = 10000
	dir := b.TempDir()
	s := newSource(b, dir)
	rest := ""
	for i := range n {
		rest += "---\n" + text(fmt.Sprint("p", i+1), 80)
	}
	path := filepath.Join(dir, "p.yaml")
	i := 0
	for b.Loop() {
		i++
		write(b, path, text("p0", 81+i%1000)+rest)
		s.refresh(nil, map[string]bool{path: true})
	}
}
