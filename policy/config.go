package policy

// Mode is policyEnforcementMode.
type Mode uint8

// With ModeDefault endpoints are isolated by the policies that select them,
// with ModeAlways all pods are, and with ModeNever there are no policies.
const (
	ModeDefault Mode = iota
	ModeAlways
	ModeNever
)

// Config is what an agent's configuration says of policies.
type Config struct {
	Mode Mode
	// HostDenied: this node reaches its own pods only where a rule says so.
	// Else it does where no rule denies it.
	HostDenied bool
	// Open: where rows don't fit into a map, everything is allowed. Else nothing is.
	Open bool
	// Host: policies of nodes are enforced.
	Host bool
	// CIDRNodes: rules of CIDRs select nodes, too (policyCIDRMatchMode).
	CIDRNodes bool
	// Proxy: there is a proxy, which enforces what is above ports and learns the addresses of names. Without it, rules
	// that need it are closed.
	Proxy bool
	// Audit: what is denied is reported, and goes on.
	Audit bool
}
