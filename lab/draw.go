package lab

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// narrowest is the width in columns below which lines are longer than asked for.
const narrowest = 30

// Draw draws the topology with box characters in at most width columns: pods in their nodes, nodes on the fabric, and
// the world below it. Nodes stand side by side as far as the width allows.
func (st *Status) Draw(w io.Writer, width int) error {
	width = max(width, narrowest)
	var boxes []box
	inner := 0
	for _, n := range st.Nodes {
		inner = max(inner, n.width())
	}
	perRow := max(1, min(len(st.Nodes), (width+2)/(inner+4+2)))
	inner = min(inner, (width+2)/perRow-6)
	for _, n := range st.Nodes {
		boxes = append(boxes, n.box(inner))
	}
	lines := []string{fit(st.title(), width)}
	for len(boxes) > 0 {
		n := min(perRow, len(boxes))
		lines = append(lines, row(boxes[:n])...)
		lines = append(lines, st.bar(boxes[:n], len(boxes) == n))
		boxes = boxes[n:]
	}
	if st.World != nil {
		lines = append(lines, st.world(width)...)
	}
	for _, p := range st.Unassigned {
		lines = append(lines, fit("pod "+p+" is assigned to no node of this lab", width))
	}
	if st.Problem != "" {
		lines = append(lines, "manifests are not applied: "+st.Problem)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

func (st *Status) title() string {
	nodes := "1 node"
	if len(st.Nodes) != 1 {
		nodes = fmt.Sprintf("%d nodes", len(st.Nodes))
	}
	t := fmt.Sprintf("lab %s: %s on a %s, MTU %d", st.Name, nodes, st.Fabric, st.MTU)
	if st.Supervisor != "running" {
		t += ", supervisor of pods " + st.Supervisor
	}
	return t
}

// box is lines of equal width.
type box struct {
	lines []string
	width int
}

// frame draws a box around text, of which each line is cut or padded to inner columns.
func frame(title string, text []string, inner int) box {
	head := fit("─ "+title+" ", inner+2)
	b := box{width: inner + 4, lines: []string{"┌" + head + strings.Repeat("─", inner+2-columns(head)) + "┐"}}
	for _, t := range text {
		t = fit(t, inner)
		b.lines = append(b.lines, "│ "+t+strings.Repeat(" ", inner-columns(t))+" │")
	}
	b.lines = append(b.lines, "└"+strings.Repeat("─", inner+2)+"┘")
	return b
}

// row puts boxes side by side, their lower edges on one line, each with a leg down to the fabric.
func row(boxes []box) []string {
	height := 0
	for _, b := range boxes {
		height = max(height, len(b.lines))
	}
	lines := make([]string, height+1)
	for i, b := range boxes {
		gap := ""
		if i > 0 {
			gap = "  "
		}
		missing := height - len(b.lines)
		for y := range lines {
			lines[y] += gap
			switch {
			case y < missing:
				lines[y] += strings.Repeat(" ", b.width)
			case y < height-1:
				lines[y] += b.lines[y-missing]
			case y == height-1:
				lines[y] += replaceColumn(b.lines[y-missing], b.width/2, '┬')
			default:
				lines[y] += replaceColumn(strings.Repeat(" ", b.width), b.width/2, '│')
			}
		}
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// bar is the fabric below a row of nodes, with the world's leg where it is the last row.
func (st *Status) bar(boxes []box, last bool) string {
	total := 0
	for i, b := range boxes {
		total += b.width
		if i > 0 {
			total += 2
		}
	}
	line := strings.Repeat("═", total)
	x := 0
	for _, b := range boxes {
		line = replaceColumn(line, x+b.width/2, '╧')
		x += b.width + 2
	}
	if last && st.World != nil {
		if []rune(line)[4] == '╧' {
			return replaceColumn(line, 4, '╪')
		}
		line = replaceColumn(line, 4, '╤')
	}
	return line
}

func (st *Status) world(width int) []string {
	var addrs []netip.Addr
	for _, p := range st.World.Addresses {
		addrs = append(addrs, p.Addr())
	}
	text := []string{"eth0 " + spaced(addrs)}
	if len(st.World.Outside) > 0 {
		text = append(text, "lo   "+spaced(st.World.Outside))
	}
	inner := 0
	for _, t := range text {
		inner = max(inner, columns(t))
	}
	b := frame("world", text, min(inner, width-4))
	return append([]string{"    │"}, headed(b, "world")...)
}

// headed writes a title after the leg that comes from above.
func headed(b box, title string) []string {
	head := []rune("┌───┴─ " + title + " ")
	for len(head) < b.width-1 {
		head = append(head, '─')
	}
	b.lines[0] = string(head[:b.width-1]) + "┐"
	return b.lines
}

// text is what a node's box holds but for pods.
func (n *NodeStatus) text() []string {
	agent := "agent " + n.Agent
	switch {
	case n.Agent == "none":
		agent = "no agent"
	case n.Reason != "":
		agent += ": " + n.Reason
	}
	text := []string{agent, "eth0 " + spaced(n.Addresses)}
	if len(n.PodCIDRs) > 0 {
		text = append(text, "pods "+spaced(n.PodCIDRs))
	}
	return text
}

// width is the number of columns inside the box that shows everything; reasons and messages don't count.
func (n *NodeStatus) width() int {
	most := columns(n.Name) + 2
	for i, t := range n.text() {
		if i > 0 || n.Reason == "" {
			most = max(most, columns(t))
		}
	}
	for _, p := range n.Pods {
		most = max(most, 4+columns(p.title())+3)
		for _, a := range p.Addresses {
			most = max(most, 4+columns(a.String()))
		}
	}
	return most
}

func (n *NodeStatus) box(inner int) box {
	var text []string
	for _, p := range n.Pods {
		text = append(text, frame(p.title(), p.text(), inner-4).lines...)
	}
	return frame(n.Name, append(text, n.text()...), inner)
}

func (p *PodStatus) title() string {
	t := p.Name + " " + p.Phase
	if p.Terminating {
		t = p.Name + " Terminating"
	}
	if p.Restarts > 0 {
		t += fmt.Sprintf(", restarted %d×", p.Restarts)
	}
	return t
}

func (p *PodStatus) text() []string {
	var text []string
	for _, a := range p.Addresses {
		text = append(text, a.String())
	}
	if p.HostNetwork {
		text = []string{"on the node's network"}
	}
	if p.Message != "" {
		text = append(text, p.Message)
	}
	return text
}

func columns(s string) int { return utf8.RuneCountInString(s) }

// fit cuts s to width columns, and shows that it did.
func fit(s string, width int) string {
	r := []rune(strings.ReplaceAll(s, "\n", " "))
	if len(r) <= width {
		return string(r)
	}
	return string(r[:max(0, width-1)]) + "…"
}

func replaceColumn(s string, column int, with rune) string {
	r := []rune(s)
	r[column] = with
	return string(r)
}

func spaced[T fmt.Stringer](items []T) string {
	var s []string
	for _, i := range items {
		s = append(s, i.String())
	}
	return strings.Join(s, " ")
}
