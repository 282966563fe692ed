package policy

// L7 is what the proxy enforces on flows that an allow rule matches. At most one of HTTP and DNS has rules, and
// ServerNames are checked whether or not there are others. An L7 without any of them allows what the rule allows.
type L7 struct {
	// HTTP: a request must match one of them.
	HTTP []HTTPRule `json:"http,omitempty"`
	// DNS: each question of a query must match one of them.
	DNS []NamePattern `json:"dns,omitempty"`
	// ServerNames are names of which the SNI of a TLS connection must be one (RFC 6066, section 3), with patterns as
	// those of DNS.
	ServerNames []string `json:"serverNames,omitempty"`
	// Terminating is the certificate by which the proxy terminates TLS of the client, and Originating what it opens
	// TLS to the server with.
	Terminating *TLSContext `json:"terminating,omitempty"`
	Originating *TLSContext `json:"originating,omitempty"`
}

// NamePattern matches DNS names. Exactly one field is set.
type NamePattern struct {
	// Name is a full name, in lower case, without the final dot.
	Name string `json:"name,omitempty"`
	// Pattern has "*" for any number of characters of one label, and for whole labels where Cilium's matchPattern has
	// it so.
	Pattern string `json:"pattern,omitempty"`
}

// String is the name or the pattern.
func (n NamePattern) String() string {
	if n.Name != "" {
		return n.Name
	}
	return n.Pattern
}

// HTTPRule matches requests. Empty fields match everything.
type HTTPRule struct {
	// Method, Path and Host are regular expressions (RE2) that match the whole value.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Host   string `json:"host,omitempty"`
	// Headers must be present: "Name", or "Name: value".
	Headers []string `json:"headers,omitempty"`
	// HeaderMatches are headers with values, and what happens if a request does not have them.
	HeaderMatches []HeaderMatch `json:"headerMatches,omitempty"`
}

// Mismatch is what the proxy does with a request that does not have the header of a HeaderMatch.
type Mismatch string

// MismatchDeny lets the rule not match. The others let it match: MismatchLog notes it in the flow record, MismatchAdd
// adds the header, MismatchDelete deletes headers of that name with other values, and MismatchReplace replaces them.
const (
	MismatchDeny    Mismatch = ""
	MismatchLog     Mismatch = "LOG"
	MismatchAdd     Mismatch = "ADD"
	MismatchDelete  Mismatch = "DELETE"
	MismatchReplace Mismatch = "REPLACE"
)

// HeaderMatch is a header that a request must have.
type HeaderMatch struct {
	Mismatch Mismatch `json:"mismatch,omitempty"`
	Name     string   `json:"name"`
	// Value is the value. Secret, if set, names the Secret whose only value it is.
	Value  string     `json:"value,omitempty"`
	Secret *SecretRef `json:"secret,omitempty"`
}

// SecretRef names a Secret.
type SecretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// TLSContext names what of a Secret TLS needs.
type TLSContext struct {
	Secret SecretRef `json:"secret"`
	// TrustedCA, Certificate and PrivateKey are keys of the Secret; empty: "ca.crt", "tls.crt" and "tls.key".
	TrustedCA   string `json:"trustedCA,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	PrivateKey  string `json:"privateKey,omitempty"`
}
