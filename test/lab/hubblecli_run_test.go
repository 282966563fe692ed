package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// invocation is a call of the CLI with what it has to print.
type invocation struct {
	server string // a node, relay, or an address
	args   string // split at spaces; $NAME is replaced, and ~ in the result is a space

	has, hasNot []string // texts of the output
	// Conditions on lines of JSON, see holds: every line, and at least one line. With either, -o jsonpb is added.
	every, some []string
	lines       int // how many there have to be; 0: any number, but not none; none: no line
	fails       bool
}

// none is a number of lines.
const none = -1

// server is an address for --server.
func (h *hubbleLab) server(name string) string {
	switch {
	case name == "relay":
		return "127.0.0.1:4245"
	case strings.Contains(name, ":"):
		return name
	}
	return "unix://" + h.hubbleSocket(name)
}

// expand replaces $NAME.
func (h *hubbleLab) expand(t *testing.T, text string) string {
	t.Helper()
	return os.Expand(text, func(name string) string {
		v, ok := h.vars[name]
		if !ok {
			t.Fatalf("%q: nothing is called %s", text, name)
		}
		return v
	})
}

// run runs an invocation until its output is right, since flows arrive some ms after their packets.
func (h *hubbleLab) run(t *testing.T, r invocation) {
	t.Helper()
	t.Run(r.server+" "+strings.ReplaceAll(r.args, "/", "_"), func(t *testing.T) {
		eventually(t, "hubble "+r.args, 3*time.Second, func() error {
			out, err := h.hubble(t.Context(), t, r)
			if (err != nil) != r.fails {
				return fmt.Errorf("%w:\n%s", errOr(err, "it succeeds"), out)
			}
			if err := h.compare(t, r, out); err != nil {
				return fmt.Errorf("%w in\n%s", err, out)
			}
			return nil
		})
	})
}

// hubble returns what the CLI prints. It runs on node1, where the relay listens.
func (h *hubbleLab) hubble(ctx context.Context, t *testing.T, r invocation) (string, error) {
	t.Helper()
	args := []string{h.cli, "--server", h.server(r.server)}
	for arg := range strings.FieldsSeq(h.expand(t, r.args)) {
		args = append(args, strings.ReplaceAll(arg, "~", " "))
		if strings.HasPrefix(arg, "-") {
			h.used[strings.SplitN(arg, "=", 2)[0]] = true
		}
	}
	if r.every != nil || r.some != nil {
		args = append(args, "-o", "jsonpb")
	}
	ctx, cancel := context.WithTimeout(ctx, patience(20*time.Second))
	defer cancel()
	return h.Node("node1").Exec(ctx, args...)
}

// compare compares what the CLI printed with what it has to print.
func (h *hubbleLab) compare(t *testing.T, r invocation, out string) error {
	t.Helper()
	for _, text := range r.has {
		if !strings.Contains(out, h.expand(t, text)) {
			return fmt.Errorf("no %q", h.expand(t, text))
		}
	}
	for _, text := range r.hasNot {
		if strings.Contains(out, h.expand(t, text)) {
			return fmt.Errorf("%q", h.expand(t, text))
		}
	}
	n := strings.Count(out, "\n")
	if (r.lines > 0 && n != r.lines) || (r.lines == none && n > 0) || (r.lines == 0 && n == 0) {
		return fmt.Errorf("%d lines, want %d", n, r.lines)
	}
	return h.conditions(t, r, out)
}

// conditions evaluates those of JSON lines.
func (h *hubbleLab) conditions(t *testing.T, r invocation, out string) error {
	t.Helper()
	if r.every == nil && r.some == nil {
		return nil
	}
	met := make([]bool, len(r.some))
	for line := range strings.Lines(out) {
		var doc any
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		for _, condition := range r.every {
			if !holds(doc, h.expand(t, condition)) {
				return fmt.Errorf("not %s: %s", condition, line)
			}
		}
		for i, condition := range r.some {
			met[i] = met[i] || holds(doc, h.expand(t, condition))
		}
	}
	for i, condition := range r.some {
		if !met[i] {
			return fmt.Errorf("no line has %s", condition)
		}
	}
	return nil
}

// holds evaluates a condition on a JSON value: "a.b=text", "a.b^=prefix", "a.b$=suffix", "a.b!=text", or
// "a.b" if there has to be a value, several with " & " that hold all, or with " | " that hold one. A list has the
// values of all its elements.
func holds(doc any, condition string) bool {
	for alternative := range strings.SplitSeq(condition, " | ") {
		all := true
		for part := range strings.SplitSeq(alternative, " & ") {
			all = all && holdsPart(doc, part)
		}
		if all {
			return true
		}
	}
	return false
}

func holdsPart(doc any, part string) bool {
	path, want, compared := strings.Cut(part, "=")
	operator := byte(0)
	if compared && strings.ContainsRune("^$!", rune(path[len(path)-1])) {
		operator, path = path[len(path)-1], path[:len(path)-1]
	}
	values := valuesAt(doc, strings.Split(path, "."))
	for _, v := range values {
		switch {
		case !compared:
			return true
		case operator == '^' && strings.HasPrefix(v, want), operator == '$' && strings.HasSuffix(v, want):
			return true
		case v == want:
			return operator == 0
		}
	}
	return operator == '!'
}

// valuesAt are the values at a path, as text.
func valuesAt(doc any, path []string) (out []string) {
	switch v := doc.(type) {
	case []any:
		for _, element := range v {
			out = append(out, valuesAt(element, path)...)
		}
		return out
	case map[string]any:
		if len(path) > 0 {
			if child, ok := v[path[0]]; ok {
				return valuesAt(child, path[1:])
			}
			return nil
		}
	}
	if len(path) > 0 || doc == nil {
		return nil
	}
	return []string{fmt.Sprint(doc)}
}

// learn gives names to what rows speak of.
func (h *hubbleLab) learn(t *testing.T) {
	t.Helper()
	for _, f := range h.stack.families {
		for _, name := range []string{"default/a1", "default/a2", "default/s2", "default/s3", "default/jailed"} {
			short := strings.ToUpper(strings.TrimPrefix(name, "default/"))
			h.vars[fmt.Sprintf("%s_%d", short, f)] = h.end(name).addr(f).String()
		}
		h.vars[fmt.Sprintf("NODE1_%d", f)] = nodeAddr(1, f).String()
		h.vars[fmt.Sprintf("WEB_%d", f)] = serviceAddr(10, f).String()
	}
	r := invocation{server: "node1", args: "observe --type trace --from-pod a1 --to-pod s2 --first 1",
		every: []string{"flow.uuid"}, lines: 1}
	eventually(t, "a1's flows are there", 5*time.Second, func() error {
		out, err := h.hubble(t.Context(), t, r)
		if err != nil {
			return err
		}
		var line any
		if err := json.Unmarshal([]byte(out), &line); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for name, path := range map[string]string{"UUID": "flow.uuid", "ID_A1": "flow.source.identity",
			"ID_S2": "flow.destination.identity", "PORT": "flow.l4.TCP.source_port", "TIME": "flow.time"} {
			values := valuesAt(line, strings.Split(path, "."))
			if len(values) != 1 {
				return fmt.Errorf("%s: %v in %s", path, values, out)
			}
			h.vars[name] = values[0]
		}
		return nil
	})
}

// follows has the CLI follow flows while there is traffic, from a node and from the relay.
func (h *hubbleLab) follows(t *testing.T) int {
	t.Helper()
	servers := []string{"node1", "relay"}
	for _, server := range servers {
		ctx, stop := context.WithCancel(t.Context())
		file := filepath.Join(t.TempDir(), "flows")
		out, err := os.Create(file)
		check(t, err)
		cmd := h.Node("node1").Command(ctx, h.cli, "--server", h.server(server), "observe", "--follow", "--protocol",
			"tcp", "--to-pod", "default/s2", "-o", "jsonpb")
		cmd.Stdout = out
		check(t, h.Node("node1").Start(cmd))
		eventually(t, "the CLI follows "+server, 10*time.Second, func() error {
			conn, err := h.end("default/a1").dialTCP(ctx, netip.AddrPort{}, at(h.end("default/s2").addr(6), 8080))
			if err != nil {
				return err
			}
			conn.Close()
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if n := strings.LastIndexByte(string(text), '\n'); n >= 0 { // the last line may not be whole
				text = text[:n+1]
			}
			return h.conditions(t, invocation{every: []string{"flow.destination.pod_name=s2"},
				some: []string{"flow.l4.TCP.flags.SYN=true & flow.IP.ipVersion=IPv6 & flow.source.pod_name=a1"}},
				string(text))
		})
		stop()
		_ = cmd.Wait() // it was killed
		check(t, out.Close())
	}
	return len(servers)
}

// offline filters flows in a file.
func (h *hubbleLab) offline(t *testing.T) int {
	t.Helper()
	out, err := h.hubble(t.Context(), t, invocation{server: "relay", args: "observe --all -o jsonpb"})
	check(t, err)
	file := filepath.Join(t.TempDir(), "flows.json")
	check(t, os.WriteFile(file, []byte(out), 0o600))
	h.vars["FILE"] = file
	rows := []invocation{
		{server: "node1", args: "observe --input-file $FILE --verdict DROPPED --to-port 81",
			every: []string{"flow.verdict=DROPPED & flow.l4.TCP.destination_port=81"}},
		{server: "node1", args: "observe --input-file $FILE --type trace-sock -6",
			has: []string{"default/a1", "post-xlate-fwd TRANSLATED"}, hasNot: []string{"DROPPED"}},
	}
	for _, r := range rows {
		h.run(t, r)
	}
	h.stdin(t.Context(), t, out)
	return 2 + len(rows)
}
