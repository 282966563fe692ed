package parse

import (
	"fmt"
	"sync"

	"go.yaml.in/yaml/v3"
)

// YAMLLines finds fields in a YAML document, which is read when the first line
// is asked for. begin is the line of the file that the document begins in, from
// 1; under is the path of the object in the document, empty if it is all of it.
func YAMLLines(document []byte, begin int, under string) Lines {
	places := sync.OnceValue(func() map[string]int {
		var root yaml.Node
		out := map[string]int{}
		// Whoever reads the object says what is wrong with it.
		if yaml.Unmarshal(document, &root) == nil {
			place(out, &root, "")
		}
		return out
	})
	return func(field string) int {
		if under != "" {
			field = under + "." + field
		}
		if line := places()[field]; line > 0 {
			return begin + line - 1
		}
		return 0
	}
}

// place notes the lines of a node and of all within. What aliases stand for is
// noted where it stands, not where it is used.
func place(out map[string]int, n *yaml.Node, at string) {
	out[at] = n.Line
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			place(out, c, at)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			place(out, c, fmt.Sprintf("%s[%d]", at, i))
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if at != "" {
				name = at + "." + name
			}
			place(out, n.Content[i+1], name)
			out[name] = n.Content[i].Line
		}
	}
}
