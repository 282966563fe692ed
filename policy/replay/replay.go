// Package replay makes of recorded flows what policies are asked about them, and has the types of the answers.
package replay

import (
	"net/netip"
	"time"
)

// End is one end of recorded flows, as it was recorded.
type End struct {
	Addr netip.Addr `json:"address"`
	// Labels are those of the identity, each "source:key=value". A node has reserved:remote-node, also where it was
	// recorded as host.
	Labels    []string `json:"labels,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Workload  string   `json:"workload,omitempty"` // "Kind name"
	// Node is where the end was, if a flow was reported there.
	Node string `json:"node,omitempty"`
}

// Flow is connections that policies can't tell apart.
type Flow struct {
	// Source and Destination are indices of Recording.Ends. Seen is the source as the destination sees it: another one
	// if a node has replaced the address.
	Source      int `json:"source"`
	Seen        int `json:"seen"`
	Destination int `json:"destination"`
	// Proto is IP's number; Port is the destination's, or a type of ICMP.
	Proto uint8  `json:"proto"`
	Port  uint16 `json:"port"`
	// Service is "namespace/name" where the destination is a Service's address, and no backend was recorded.
	Service string `json:"service,omitempty"`
	Content
	// Connections are told apart by the source's port. Events are reports: of packets that came where they were going
	// (Delivered), that policies Denied, or Audited.
	Connections int       `json:"connections"`
	Events      int       `json:"events"`
	Delivered   int       `json:"delivered,omitempty"`
	Denied      int       `json:"denied,omitempty"`
	Audited     int       `json:"audited,omitempty"`
	Last        time.Time `json:"last,omitzero"`
}

// Content is what the proxy recorded of flows, and the destination's names. Empty fields are not known.
type Content struct {
	// HTTP is a request as in "GET /path", and Host its host, or the server's name of a TLS connection.
	HTTP string `json:"http,omitempty"`
	Host string `json:"host,omitempty"`
	// DNS is the name that a query asks for.
	DNS string `json:"dns,omitempty"`
	// Names are DNS names of the destination's address that the source had resolved, separated by spaces.
	Names string `json:"names,omitempty"`
}

// Recording is what was recorded.
type Recording struct {
	Ends  []End  `json:"ends"`
	Flows []Flow `json:"flows"`
}

// Undecided are events, or flows, of which nothing is said.
type Undecided struct {
	Reason  string `json:"reason"`
	Events  int    `json:"events"`
	Example string `json:"example"`
}

// Verdict is what policies say of a flow.
type Verdict struct {
	Verdict string `json:"verdict"` // allowed, denied or audited
	// Direction is that which is denied; of what is allowed, the last one in which a rule decides.
	Direction string `json:"direction,omitempty"`
	Rule      string `json:"rule,omitempty"`      // that decides, with its place
	Isolating string `json:"isolating,omitempty"` // the policies by which what no rule allows is denied
}

// Change is a flow and its verdicts.
type Change struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	// SourceAddress and so on tell flows apart whose ends have the same name.
	SourceAddress      netip.Addr `json:"sourceAddress"`
	SeenAddress        netip.Addr `json:"seenAddress,omitzero"` // that the destination sees, if it is another one
	DestinationAddress netip.Addr `json:"destinationAddress"`
	Service            string     `json:"service,omitempty"` // whose backend is chosen yet
	Port               string     `json:"port"`              // "80/TCP"
	Proto              uint8      `json:"proto"`
	Number             uint16     `json:"portNumber"`
	Connections        int        `json:"connections"`
	Events             int        `json:"events"`
	Recorded           string     `json:"recorded"` // allowed, denied, audited or mixed
	Changed            bool       `json:"changed"`
	Before             Verdict    `json:"before"`
	After              Verdict    `json:"after"`
}

// Owner is a workload whose policies decide, and its flows.
type Owner struct {
	Owner string `json:"owner"` // "Deployment demo/web", "Node node1"
	// Denied, Allowed and Audited are connections whose verdict becomes that.
	Denied  int      `json:"denied"`
	Allowed int      `json:"allowed"`
	Audited int      `json:"audited"`
	Flows   []Change `json:"flows"`
}

// Object is what becomes of a policy.
type Object struct {
	Object string `json:"object"`
	Change string `json:"change"`
}

// Result compares the verdicts on recorded flows.
type Result struct {
	Objects []Object `json:"objects"`
	// Owners are those of flows that change, and with Request.All those of all.
	Owners []Owner `json:"owners"`
	// Flows and Connections are how many were decided, and Changed how many flows change.
	Flows       int `json:"flows"`
	Connections int `json:"connections"`
	Changed     int `json:"changed"`
	// Unlike are flows that were recorded with another verdict than the current policies give.
	Unlike        int         `json:"unlike"`
	UnlikeExample string      `json:"unlikeExample,omitempty"`
	Undecided     []Undecided `json:"undecided"`
	// Skipped are events that say nothing of their own: replies, and translations of sockets' addresses.
	Skipped int `json:"skipped"`
	// Gaps are what is missing in the recording.
	Gaps       []string `json:"gaps,omitempty"`
	Unfinished string   `json:"unfinished,omitempty"`
}
