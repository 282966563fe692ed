package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

// TestWalk follows calls in the order of their text, each function once, and not what comments mention.
func TestWalk(t *testing.T) {
	tree := fstest.MapFS{
		"bpf/datapath.c": {Data: []byte("int helper(void)\n{\n\treturn parse();\n}\n\n" +
			"/* Calls helper. */\nint from_pod(struct __sk_buff *skb)\n{\n" +
			"\thelper(); /* other() */\n\treturn send(skb);\n}\n")},
		"bpf/l4.h": {Data: []byte("INLINE enum next parse(void)\n{\n\treturn 0;\n}\n")},
		"route/path.h": {Data: []byte("APART int send(struct __sk_buff *skb)\n{\n" +
			"\treturn parse() ?: bpf_redirect();\n}\n")},
		"nat/nat.h": {Data: []byte("INLINE int other(void)\n{\n\treturn 0;\n}\n")},
	}
	functions, err := parse(tree)
	if err != nil {
		t.Fatal(err)
	}
	w := walk(functions, "from_pod")
	want := []string{"helper in bpf/datapath.c: parse in bpf/l4.h", "from_pod in bpf/datapath.c: send in route/path.h"}
	if !slices.Equal(w.jumps, want) || len(w.seen) != 4 || len(w.files) != 3 || w.folders != 1 {
		t.Errorf("%q, %d functions in %d files, %d to other folders", w.jumps, len(w.seen), len(w.files), w.folders)
	}
}
