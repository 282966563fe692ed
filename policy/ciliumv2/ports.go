package ciliumv2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PortRule is ports, one of which must match, and what must hold above them.
type PortRule struct {
	Ports          []PortProtocol `json:"ports,omitempty"`
	TerminatingTLS *TLS           `json:"terminatingTLS,omitempty"`
	OriginatingTLS *TLS           `json:"originatingTLS,omitempty"`
	ServerNames    []string       `json:"serverNames,omitempty"`
	Listener       *Listener      `json:"listener,omitempty"`
	Rules          *L7Rules       `json:"rules,omitempty"`
}

// PortDenyRule is ports, one of which must match.
type PortDenyRule struct {
	Ports []PortProtocol `json:"ports,omitempty"`
}

// PortProtocol is a port, or a range of ports, of a protocol.
type PortProtocol struct {
	// Port is a number, "0" for all, or the name of a port.
	Port string `json:"port"`
	// EndPort is the last port of a range that begins with Port; 0: Port alone.
	EndPort int32 `json:"endPort,omitempty"`
	// Protocol is TCP, UDP, SCTP, or ANY, which is what an empty one means.
	Protocol string `json:"protocol,omitempty"`
}

// ICMPRule is types of ICMP messages, one of which must match.
type ICMPRule struct {
	Fields []ICMPField `json:"fields,omitempty"`
}

// ICMPField is a type of ICMP messages.
type ICMPField struct {
	// Family is IPv4, which is what an empty one means, or IPv6.
	Family string `json:"family,omitempty"`
	// Type is a number of 0..255, or a name such as EchoRequest.
	Type *intstr.IntOrString `json:"type"`
}

// Authentication is how both ends must have proved their identities.
type Authentication struct {
	// Mode is disabled, required or test-always-fail.
	Mode string `json:"mode"`
}

// Groups are addresses that a cloud provider knows.
type Groups struct {
	AWS *AWSGroup `json:"aws,omitempty"`
}

// AWSGroup selects instances of AWS.
type AWSGroup struct {
	Labels              map[string]string `json:"labels,omitempty"`
	SecurityGroupsIDs   []string          `json:"securityGroupsIds,omitempty"`
	SecurityGroupsNames []string          `json:"securityGroupsNames,omitempty"`
	Region              string            `json:"region,omitempty"`
}

// Service is what stands behind Kubernetes Services, chosen by name or by
// labels.
type Service struct {
	K8sServiceSelector *ServiceSelector `json:"k8sServiceSelector,omitempty"`
	K8sService         *ServiceName     `json:"k8sService,omitempty"`
}

// ServiceSelector selects Services by labels, in all namespaces where Namespace
// is empty.
type ServiceSelector struct {
	Selector  metav1.LabelSelector `json:"selector"`
	Namespace string               `json:"namespace,omitempty"`
}

// ServiceName names a Service.
type ServiceName struct {
	ServiceName string `json:"serviceName,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
}

// FQDN is names whose addresses count: exactly one of its fields.
type FQDN struct {
	MatchName    string `json:"matchName,omitempty"`
	MatchPattern string `json:"matchPattern,omitempty"`
}

// Secret names a Secret.
type Secret struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// TLS says which certificates TLS connections are opened with, and made again.
type TLS struct {
	Secret      *Secret `json:"secret"`
	TrustedCA   string  `json:"trustedCA,omitempty"`
	Certificate string  `json:"certificate,omitempty"`
	PrivateKey  string  `json:"privateKey,omitempty"`
}

// Listener is where flows are sent to instead of to a listener that is made for
// them.
type Listener struct {
	EnvoyConfig *EnvoyConfig `json:"envoyConfig"`
	Name        string       `json:"name"`
	Priority    uint8        `json:"priority,omitempty"`
}

// EnvoyConfig names a CiliumEnvoyConfig or a CiliumClusterwideEnvoyConfig.
type EnvoyConfig struct {
	Kind string `json:"kind,omitempty"`
	Name string `json:"name"`
}

// L7Rules are rules of one protocol above TCP or UDP.
type L7Rules struct {
	HTTP    []HTTP              `json:"http,omitempty"`
	Kafka   []Kafka             `json:"kafka,omitempty"`
	DNS     []FQDN              `json:"dns,omitempty"`
	L7Proto string              `json:"l7proto,omitempty"`
	L7      []map[string]string `json:"l7,omitempty"`
}

// HTTP matches requests; what is empty matches all.
type HTTP struct {
	Path          string        `json:"path,omitempty"`
	Method        string        `json:"method,omitempty"`
	Host          string        `json:"host,omitempty"`
	Headers       []string      `json:"headers,omitempty"`
	HeaderMatches []HeaderMatch `json:"headerMatches,omitempty"`
}

// HeaderMatch matches a header of a request, or mends it.
type HeaderMatch struct {
	// Mismatch is LOG, ADD, DELETE or REPLACE; empty: such requests are denied.
	Mismatch string  `json:"mismatch,omitempty"`
	Name     string  `json:"name"`
	Secret   *Secret `json:"secret,omitempty"`
	Value    string  `json:"value,omitempty"`
}

// Kafka matches requests; what is empty matches all.
type Kafka struct {
	Role       string `json:"role,omitempty"`
	APIKey     string `json:"apiKey,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	ClientID   string `json:"clientID,omitempty"`
	Topic      string `json:"topic,omitempty"`
}
