package policy

import (
	"fmt"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Realised is what is in the kernel of an endpoint's policies.
type Realised struct {
	// Slot is the endpoint's, Pod its "namespace/name", and Attachment the
	// container's interface that it was written for.
	Slot       uint16 `json:"slot"`
	Pod        string `json:"pod"`
	Attachment string `json:"-"`
	// Known is whether the pod's labels are; until then it is reserved:init.
	Known bool `json:"known"`
	// Rules are how many rules apply to it, by Direction; Enforced whether any policy does.
	Rules    [2]int  `json:"rules"`
	Enforced [2]bool `json:"enforced"`
	Audit    bool    `json:"audit"`
	// Waiting: its policies hold as they were until the lists that they name
	// now are in the kernel.
	Waiting bool `json:"waiting,omitempty"`
	// Error is why some of them can't be in the kernel; empty if all are.
	Error string `json:"error,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*Realised) TableHeader() []string {
	return []string{"Slot", "Pod", "Ingress", "Egress", "Audit", "State"}
}

// TableRow is the row as text.
func (r *Realised) TableRow() []string {
	row := []string{strconv.Itoa(int(r.Slot)), r.Pod}
	for dir, on := range r.Enforced {
		text := "-"
		if on {
			text = fmt.Sprintf("%d rules", r.Rules[dir])
		}
		row = append(row, text)
	}
	state := "done"
	switch {
	case r.Error != "":
		state = r.Error
	case r.Waiting:
		state = "waits for a long list of addresses"
	case !r.Known:
		state = "the pod isn't known"
	}
	return append(row, strconv.FormatBool(r.Audit), state)
}

// RuleRow is a rule and its number: the one that verdicts have in the kernel.
type RuleRow struct {
	ID        uint32    `json:"id"`
	Origin    Origin    `json:"origin"`
	Direction Direction `json:"direction"`
	Action    Action    `json:"action"`
	// Others are the other rules that the number stands for: rules that the proxy enforces together.
	Others []Origin `json:"others,omitempty"`
}

// Name is the rule as text, or the rules, by " or ".
func (r *RuleRow) Name() string {
	text := r.Origin.String()
	for _, o := range r.Others {
		text += " or " + o.String()
	}
	return text
}

// TableHeader names the columns of TableRow.
func (*RuleRow) TableHeader() []string { return []string{"ID", "Direction", "Action", "Rule"} }

// TableRow is the row as text.
func (r *RuleRow) TableRow() []string {
	return []string{strconv.FormatUint(uint64(r.ID), 10), r.Direction.String(), r.Action.String(), r.Name()}
}

// RealisedBySlot finds what is in the kernel of an endpoint.
func RealisedBySlot(slot uint16) statedb.Query[*Realised] { return realisedSlots().Query(slot) }

// RuleByID finds a rule by its number.
func RuleByID(id uint32) statedb.Query[*RuleRow] { return ruleIDs().Query(id) }

func realisedSlots() statedb.Index[*Realised, uint16] {
	return statedb.Index[*Realised, uint16]{
		Name:       "slot",
		FromObject: func(r *Realised) index.KeySet { return index.NewKeySet(index.Uint16(r.Slot)) },
		FromKey:    index.Uint16,
		FromString: index.Uint16String,
		Unique:     true,
	}
}

func ruleIDs() statedb.Index[*RuleRow, uint32] {
	return statedb.Index[*RuleRow, uint32]{
		Name:       "id",
		FromObject: func(r *RuleRow) index.KeySet { return index.NewKeySet(index.Uint32(r.ID)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}
}

func NewEngineTables(db *statedb.DB) (statedb.RWTable[*Realised], statedb.RWTable[*RuleRow], error) {
	realised, err := statedb.NewTable(db, "endpoint-policies", realisedSlots())
	if err != nil {
		return nil, nil, fmt.Errorf("create table endpoint-policies: %w", err)
	}
	rules, err := statedb.NewTable(db, "policy-rules", ruleIDs())
	if err != nil {
		return nil, nil, fmt.Errorf("create table policy-rules: %w", err)
	}
	return realised, rules, nil
}
