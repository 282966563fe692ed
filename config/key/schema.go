package key

import (
	"fmt"
)

// Schema is a JSON Schema, draft 7, of one value.
type Schema = map[string]any

// Explained is s with what it wants in words, of which a validator tells its user: what s doesn't take must be
// equal to the words, and so is refused with them. JSON Schema has no messages, and no validator prints
// descriptions.
func Explained(s Schema, want string) Schema {
	return Schema{"description": want, "if": Schema{"not": s}, "then": Schema{"const": want}}
}

// Pattern is of text; want is what it says in words.
func Pattern(expression, want string) Schema {
	return Explained(Schema{"type": "string", "pattern": expression}, want)
}

func whole(low, high int64) Schema {
	return Schema{"type": "integer", "minimum": low, "maximum": high}
}

func listOf(item Schema) Schema { return Schema{"type": "array", "items": item} }

// texts are a list, or text with commas or blanks between; want is what one of them is.
func texts(one, want string) Schema {
	text := func(expression string) Schema { return Schema{"type": "string", "pattern": expression} }
	list, words := listOf(text("^("+one+")$")), text(fmt.Sprintf("^[ ,]*((%s)[ ,]+)*(%s)?$", one, one))
	return Explained(Schema{"anyOf": []any{list, words}}, "a list of "+want)
}

// portText is what a port may be in quotes.
func portText(low int64) string {
	if low == 0 {
		return "^[0-9]*$"
	}
	return "^[0-9]+$"
}

func anyOf(values []string) (list []any) {
	for _, v := range values {
		list = append(list, v)
	}
	return list
}

// Regular expressions of what lists hold.
const (
	objectName = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	deviceName = `[^+/: \t*?!,]{1,15}\+?`
)
