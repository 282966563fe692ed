package docstest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNames: tests that the prose names exist, and so do the files and headings that it links to.
func TestNames(t *testing.T) {
	tr := newTree(t)
	markdown := tr.markdown(t)
	for file, text := range markdown {
		for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+\b`).FindAllString(text, -1) {
			if !tr.module.Declares(name) {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
		for _, link := range links(text) {
			to, anchor, _ := strings.Cut(link, "#")
			target := file
			if to != "" {
				target = path.Join(path.Dir(file), to)
			}
			if _, err := os.Stat(filepath.Join(tr.root, target)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if anchor != "" && !slices.Contains(anchors(markdown[target]), anchor) {
				t.Errorf("%s: %s has no heading #%s", file, target, anchor)
			}
		}
	}
}

// TestArchitectureNames: names of the datapath that ARCHITECTURE.md has as code exist.
func TestArchitectureNames(t *testing.T) {
	tr := newTree(t)
	for _, span := range codeSpans(tr.markdown(t)["ARCHITECTURE.md"]) {
		if regexp.MustCompile(`^[a-z]\w*_\w+$`).MatchString(span) && !tr.has(span, ".h", ".c", ".go") {
			t.Errorf("ARCHITECTURE.md: nothing in the tree is called %s", span)
		}
	}
}

func TestLinksAndAnchors(t *testing.T) {
	got := links("[a](b.md) [c](../d.md#e-f) [g](#h) [i](https://example.com/j) see k(l.md)")
	if want := []string{"b.md", "../d.md#e-f", "#h", "l.md"}; !slices.Equal(got, want) {
		t.Errorf("got links %q, want %q", got, want)
	}
	got = anchors("# Cost tiers\ntext\n```\n# no heading\n```\n### Legacy routing (`bpf.hostLegacyRouting`)\n")
	if want := []string{"cost-tiers", "legacy-routing-bpfhostlegacyrouting"}; !slices.Equal(got, want) {
		t.Errorf("got anchors %q, want %q", got, want)
	}
}

// links returns what a text links to inside the tree, with anchors.
func links(text string) (found []string) {
	for _, link := range regexp.MustCompile(`\]\(([^)]+)\)|\w\(([\w./-]+\.md)\)`).FindAllStringSubmatch(text, -1) {
		if to := link[1] + link[2]; !strings.Contains(to, "://") {
			found = append(found, to)
		}
	}
	return found
}

// anchors returns the anchors of a text's headings, as GitHub makes them.
func anchors(text string) (found []string) {
	outside := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(outside, -1) {
		plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, strings.ReplaceAll(plain, " ", "-"))
	}
	return found
}
