// Package drop names the ways on and the drop reasons of the datapath, explains
// them, and reads how often each was taken.
package drop

import (
	"fmt"
	"strings"

	"myelin/bpf"
)

// Outcome is how a packet's way through a hook can end.
type Outcome struct {
	Number bpf.DatapathOutcome
	Name   string // of the enumerator in drop.h
	What   string // what happened, one sentence
	Do     string // what to do about it; empty where nothing is wrong
}

// IsDrop reports whether the packet is lost.
func (o Outcome) IsDrop() bool { return o.Number >= bpf.DatapathOutcomeDROP_FIRST }

// Text is the name as prose: "spoofed MAC".
func (o Outcome) Text() string {
	words := strings.Split(strings.ToLower(trim(o.Name)), "_")
	for i, w := range words {
		words[i] = spell(w)
	}
	return strings.Join(words, " ")
}

// Label is the name as a label of metrics: "spoofed_mac", "pod".
func (o Outcome) Label() string { return strings.ToLower(trim(o.Name)) }

// trim takes off what IsDrop says. REPLY_ stays: the packet was answered.
func trim(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, "DROP_"), "FORWARD_")
}

// spell writes abbreviations as the field does.
func spell(word string) string {
	switch word {
	case "mac", "arp", "nd", "icmp", "vlan", "ttl", "nat", "l2", "l4", "quic", "dns":
		return strings.ToUpper(word)
	}
	return word
}

// Names finds outcomes by number. The zero value knows none.
type Names struct {
	byNumber [bpf.DatapathOutcomeOUTCOMES]Outcome
}

// NewNames returns the names of all outcomes.
func NewNames() *Names {
	n := &Names{}
	for _, o := range outcomes() {
		n.byNumber[o.Number] = o
	}
	return n
}

// Outcome returns the outcome of a number. One that this program doesn't know,
// of a datapath that is newer, has a name like "OUTCOME_63".
func (n *Names) Outcome(number uint8) Outcome {
	if int(number) < len(n.byNumber) && n.byNumber[number].Name != "" {
		return n.byNumber[number]
	}
	return Outcome{Number: bpf.DatapathOutcome(number), Name: fmt.Sprintf("OUTCOME_%d", number),
		What: "This program is older than the datapath."}
}

// ByName returns the outcome of an enumerator, and whether there is one.
func (n *Names) ByName(name string) (Outcome, bool) {
	for _, o := range n.byNumber {
		if o.Name == name && name != "" {
			return o, true
		}
	}
	return Outcome{}, false
}

// Hooks are the names of the hooks by their number.
func Hooks() [bpf.DatapathHookHOOK_FROM_PROXY + 1]bpf.Hook {
	return [...]bpf.Hook{
		bpf.DatapathHookHOOK_FROM_POD:      bpf.FromPod,
		bpf.DatapathHookHOOK_TO_POD:        bpf.ToPod,
		bpf.DatapathHookHOOK_FROM_WIRE:     bpf.FromWire,
		bpf.DatapathHookHOOK_TO_WIRE:       bpf.ToWire,
		bpf.DatapathHookHOOK_FROM_WIRE_XDP: bpf.FromWireXDP,
		bpf.DatapathHookHOOK_FROM_PROXY:    bpf.FromProxy,
	}
}
