// Package docstest finds the code blocks of the tree's Markdown files, so that tests can run or check them: see
// README.md.
package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Block is a piece of code in a Markdown file.
type Block struct {
	// File is the slash path from the tree's root, Heading the nearest one above.
	File, Heading string
	// Info is the word behind the fence, such as "yaml"; empty for an indented block.
	Info string
	// Lines are without the block's own indentation.
	Lines []string
}

// Name is how a block is called in messages and exceptions: its file and its first line.
func (b Block) Name() string { return b.File + ": " + strings.Join(strings.Fields(b.Lines[0]), " ") }

// indent is what makes a block without fences.
const indent = "    "

// Blocks returns the fenced and indented code blocks of a file, in their order. Indented blocks end at empty lines. A
// line that ends in a backslash is joined with the next one, as in a shell.
func Blocks(file, text string) []Block {
	var blocks []Block
	heading, fence, inList := "", "", false
	current := Block{File: file}
	end := func() {
		if current.Lines = joinContinued(current.Lines); len(current.Lines) > 0 {
			blocks = append(blocks, current)
		}
		current = Block{File: file, Heading: heading}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "" && trimmed == fence:
			fence = ""
			end()
		case fence != "":
			current.Lines = append(current.Lines, line)
		case strings.HasPrefix(trimmed, "```"):
			end()
			fence, current.Info = "```", strings.TrimPrefix(trimmed, "```")
		case strings.HasPrefix(line, "#"):
			heading, inList = strings.TrimLeft(line, "# "), false
			end()
		case strings.HasPrefix(line, indent) && !inList && trimmed != "":
			current.Lines = append(current.Lines, strings.TrimPrefix(line, indent))
		default:
			end()
			// What follows a list's item and is indented belongs to it.
			inList = isItem(trimmed) || inList && (trimmed == "" || strings.HasPrefix(line, " "))
		}
	}
	end()
	return blocks
}

// joinContinued joins each line that ends in a backslash with the line after it.
func joinContinued(lines []string) []string {
	var joined []string
	continued := false
	for _, line := range lines {
		text, more := strings.CutSuffix(line, ` \`)
		if continued {
			joined[len(joined)-1] += " " + strings.TrimSpace(text)
		} else {
			joined = append(joined, text)
		}
		continued = more
	}
	return joined
}

func isItem(line string) bool {
	return strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") ||
		regexp.MustCompile(`^[0-9]+\. `).MatchString(line)
}

// codeSpans are the pieces of code inside of paragraphs and tables: what stands between single backticks.
func codeSpans(text string) []string {
	var spans []string
	outside := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	for _, found := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(outside, -1) {
		spans = append(spans, strings.ReplaceAll(found[1], `\|`, "|"))
	}
	return spans
}

// LabPage is the page whose sections are tours of several blocks: TestLabDocs in test/lab runs them.
const LabPage = "docs/lab.md"

// UserDocs returns the blocks of README.md and of all files in docs, by the slash path of the file from the tree's
// root.
func UserDocs(root string) (map[string][]Block, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	found := map[string][]Block{}
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		found[filepath.ToSlash(name)] = Blocks(filepath.ToSlash(name), string(text))
	}
	return found, nil
}

// tourCommand begins the first line of a tour.
const tourCommand = "bin/myelin lab up "

// IsTour says whether a block is a sequence of commands that brings a lab up, uses it and takes it down.
func (b Block) IsTour() bool { return strings.HasPrefix(b.Lines[0], tourCommand) }

// IsDemo says whether a block shows output of `make demo`, from its first step on.
func (b Block) IsDemo() bool { return strings.HasPrefix(b.Lines[0], "1. ") }
