package results

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Budget is a promise about one result. Exactly one bound is set.
type Budget struct {
	// Name is the Result's.
	Name string `json:"name"`
	// MinRatio is the least ratio to the baseline, or to the result called Of.
	MinRatio *float64 `json:"min_ratio,omitempty"`
	// MinValue is the smallest value, in Unit.
	MinValue *float64 `json:"min_value,omitempty"`
	// Of is another result, which MinRatio compares with; both were measured against a baseline, and it is their ratios
	// to it that are compared, as they may come from two runs.
	Of string `json:"of,omitempty"`
	// MaxValue is the largest value, in Unit.
	MaxValue *float64 `json:"max_value,omitempty"`
	// Unit is the result's; empty for a ratio.
	Unit string `json:"unit,omitempty"`
}

// String is the bound as it stands in a table: "≥ 0.88", "≥ 0.97 of vm/veth-ipv4/rr" or "≤ 60 MB".
func (b Budget) String() string {
	switch {
	case b.Of != "":
		return "≥ " + ratioText(*b.MinRatio) + " of " + b.Of
	case b.MinRatio != nil:
		return "≥ " + ratioText(*b.MinRatio)
	}
	sign, bound := "≤", b.MaxValue
	if b.MinValue != nil {
		sign, bound = "≥", b.MinValue
	}
	return strings.TrimSpace(fmt.Sprintf("%s %g %s", sign, *bound, b.Unit))
}

// ratioText has two decimals, or as many as the ratio needs.
func ratioText(ratio float64) string {
	text := strconv.FormatFloat(ratio, 'f', -1, 64)
	if _, decimals, _ := strings.Cut(text, "."); len(decimals) > 2 {
		return text
	}
	return fmt.Sprintf("%.2f", ratio)
}

// LoadBudgets reads a list of budgets and refuses one that bounds nothing, or two things.
func LoadBudgets(path string) ([]Budget, error) {
	var list []Budget
	if err := loadJSON(path, &list); err != nil {
		return nil, err
	}
	for _, b := range list {
		bounds := 0
		for _, bound := range []*float64{b.MinRatio, b.MinValue, b.MaxValue} {
			if bound != nil {
				bounds++
			}
		}
		if bounds != 1 {
			return nil, fmt.Errorf("read %s: %q needs one of min_ratio, min_value and max_value", path, b.Name)
		}
		if b.Of != "" && b.MinRatio == nil {
			return nil, fmt.Errorf("read %s: %q: \"of\" needs min_ratio", path, b.Name)
		}
	}
	return list, nil
}

// Check compares results with budgets and says for each broken one what it is and what was measured. A budget that
// nothing measured is broken too: a promise that is not checked is none.
func Check(list []Result, budgets []Budget) []error {
	var broken []error
	for _, b := range budgets {
		if err := b.check(list); err != nil {
			broken = append(broken, err)
		}
	}
	return broken
}

func (b Budget) check(list []Result) error {
	r, ok := find(list, b.Name)
	if !ok {
		return fmt.Errorf("%s: not measured, budget %s", b.Name, b)
	}
	if b.Of != "" {
		return b.checkOf(list, r)
	}
	switch {
	case b.MinRatio != nil && r.Ratio < *b.MinRatio:
		return fmt.Errorf("%s: ratio %.3f, budget %s", b.Name, r.Ratio, b)
	case b.MinRatio == nil && r.Unit != b.Unit:
		return fmt.Errorf("%s: measured in %q, budget %s", b.Name, r.Unit, b)
	case b.MaxValue != nil && r.Value > *b.MaxValue, b.MinValue != nil && r.Value < *b.MinValue:
		return fmt.Errorf("%s: %g %s, budget %s", b.Name, r.Value, r.Unit, b)
	}
	return nil
}

func (b Budget) checkOf(list []Result, r Result) error {
	other, _ := find(list, b.Of)
	if other.Ratio == 0 || r.Ratio == 0 {
		return fmt.Errorf("%s: it and %s must both be measured against a baseline, budget %s", b.Name, b.Of, b)
	}
	if ratio := r.Ratio / other.Ratio; ratio < *b.MinRatio {
		return fmt.Errorf("%s: ratio %.3f to %s, budget %s", b.Name, ratio, b.Of, b)
	}
	return nil
}

func find(list []Result, name string) (Result, bool) {
	i := slices.IndexFunc(list, func(r Result) bool { return r.Name == name })
	if i < 0 {
		return Result{}, false
	}
	return list[i], true
}
