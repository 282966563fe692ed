package policy

// Operator is how a requirement is met.
type Operator uint8

// The operators of Kubernetes' label selectors (metav1.LabelSelectorOperator).
const (
	In Operator = iota
	NotIn
	Exists
	NotExists
)

// AnySource as the source of a key matches a label of any source.
const AnySource = "any"

// Requirement is met by a set of labels, or not. NotIn is met as well where
// there is no such label, as in Kubernetes.
type Requirement struct {
	// Source is "k8s", "reserved", "any" and so on.
	Source string
	Key    string
	Op     Operator
	Values []string // sorted; In and NotIn
}

// Selector matches label sets that meet all of its requirements. The empty one
// matches every set.
type Selector []Requirement
