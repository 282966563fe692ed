// Package docstest finds what the tree's Markdown shows as code, so that tests can run it: see README.md.
package docstest

import (
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

// Blocks are the fenced and indented blocks of a file, in its order. Empty lines part indented blocks: each part is told apart by
// what it is.
func Blocks(file, text string) []Block {
	var blocks []Block
	heading, fence, inList := "", "", false
	current := Block{File: file}
	end := func() {
		if len(current.Lines) > 0 {
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

func isItem(line string) bool {
	return strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") || regexp.MustCompile(`^[0-9]+\. `).MatchString(line)
}

// Spans are the pieces of code inside of paragraphs and tables: what stands between single backticks.
func Spans(text string) []string {
	var spans []string
	outside := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	for _, found := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(outside, -1) {
		spans = append(spans, strings.ReplaceAll(found[1], `\|`, "|"))
	}
	return spans
}

// Section are the blocks below a heading.
func Section(blocks []Block, heading string) []Block {
	var found []Block
	for _, b := range blocks {
		if b.Heading == heading {
			found = append(found, b)
		}
	}
	return found
}
