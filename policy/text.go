package policy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// String is as in "k8s:app=web", "any:tier in (a,b)", "k8s:app" or "!k8s:app".
func (r Requirement) String() string {
	key := r.Source + ":" + r.Key
	switch {
	case r.Op == Exists:
		return key
	case r.Op == NotExists:
		return "!" + key
	case r.Op == NotIn:
		return key + " notin (" + strings.Join(r.Values, ",") + ")"
	case len(r.Values) == 1:
		return key + "=" + r.Values[0]
	}
	return key + " in (" + strings.Join(r.Values, ",") + ")"
}

// String is "admin", "default" or "baseline".
func (t Tier) String() string { return [...]string{"admin", "default", "baseline"}[t] }

// String is "In", "NotIn", "Exists" or "DoesNotExist".
func (o Operator) String() string {
	return [...]string{"In", "NotIn", "Exists", "DoesNotExist"}[o]
}

// MarshalJSON names the directions that are isolated.
func (s Spec) MarshalJSON() ([]byte, error) {
	type plain Spec
	isolates := []Direction{}
	for d, yes := range s.Isolates {
		if yes {
			isolates = append(isolates, Direction(d))
		}
	}
	return json.Marshal(struct {
		plain
		Isolates []Direction `json:"isolates"`
	}{plain(s), isolates})
}

// MarshalText is String.
func (d Direction) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalText is String.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// MarshalText is String.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (d *Direction) UnmarshalText(text []byte) error { return named(d, text, Ingress, Egress) }

// UnmarshalText is the inverse of MarshalText.
func (a *Action) UnmarshalText(text []byte) error { return named(a, text, Deny, Allow, Pass) }

// UnmarshalText is the inverse of MarshalText.
func (t *Tier) UnmarshalText(text []byte) error {
	return named(t, text, TierAdmin, TierDefault, TierBaseline)
}

// named finds the one of some values that is called so.
func named[T fmt.Stringer](to *T, text []byte, all ...T) error {
	for _, v := range all {
		if v.String() == string(text) {
			*to = v
			return nil
		}
	}
	return fmt.Errorf("%q is none of %v", text, all)
}

// UnmarshalText is the inverse of MarshalText.
func (o *Operator) UnmarshalText(text []byte) error {
	return named(o, text, In, NotIn, Exists, NotExists)
}

// MarshalText is String.
func (o Operator) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// MarshalText is String.
func (p Port) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// MarshalText is String.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is the requirements by comma; "all" where there are none.
func (s Selector) String() string {
	if len(s) == 0 {
		return "all"
	}
	return list(s, ",")
}

// String is as in "80/TCP", "80-90/UDP", "http/TCP", "TCP", "ICMPv6 128" or "all".
func (p Port) String() string {
	proto, ok := map[uint8]string{
		ProtoAny: "all", ProtoICMP: "ICMP", ProtoTCP: "TCP", ProtoUDP: "UDP", ProtoICMPv6: "ICMPv6", ProtoSCTP: "SCTP",
	}[p.Proto]
	if !ok {
		proto = strconv.Itoa(int(p.Proto))
	}
	numbers := strconv.Itoa(int(p.First))
	if p.Last != p.First {
		numbers += "-" + strconv.Itoa(int(p.Last))
	}
	switch {
	case p.Name != "":
		return p.Name + "/" + proto
	case p.Proto == ProtoAny || p.First == 0 && p.Last == 1<<16-1:
		return proto
	case p.Proto == ProtoICMP || p.Proto == ProtoICMPv6:
		return proto + " " + numbers
	}
	return numbers + "/" + proto
}

// String is as in "10.0.0.0/8 fd00::/8 except 10.1.0.0/16".
func (p *Prefixes) String() string {
	var parts []string
	if len(p.Include) > 0 {
		parts = append(parts, list(p.Include, " "))
	}
	if p.Group != "" {
		parts = append(parts, "group "+p.Group)
	}
	if p.GroupSelector != nil {
		parts = append(parts, "groups "+p.GroupSelector.String())
	}
	if len(p.Except) > 0 {
		parts = append(parts, "except "+list(p.Except, " "))
	}
	if !p.Pods {
		parts = append(parts, "outside")
	}
	return strings.Join(parts, " ")
}

// String is as in "service shop/web" or "services */k8s:app=web".
func (s *ServicePeer) String() string {
	namespace := s.Namespace
	if namespace == "" {
		namespace = "*"
	}
	if s.Selector != nil {
		return "services " + namespace + "/" + s.Selector.String()
	}
	return "service " + namespace + "/" + s.Name
}

// String is the field that is set.
func (p Peer) String() string {
	text := "no peer"
	switch {
	case p.Endpoints != nil:
		text = p.Endpoints.String()
	case p.Nodes != nil:
		text = "nodes " + p.Nodes.String()
	case p.Prefixes != nil:
		text = p.Prefixes.String()
	case p.Service != nil:
		text = p.Service.String()
	case p.Names != nil:
		text = "names " + list(p.Names, " ")
	}
	if len(p.Required) > 0 {
		text += " if " + list(p.Required, " and ")
	}
	return text
}

// String is as in "allow ingress from k8s:app=a on 80/TCP".
func (r Rule) String() string {
	peers, ports := "everybody", ""
	if r.Peers != nil {
		peers = list(r.Peers, " or ")
	}
	if len(r.Peers) == 0 && r.Peers != nil {
		peers = "no peer"
	}
	if r.Ports != nil {
		ports = " on " + list(r.Ports, " ")
	}
	if r.L7 != nil {
		ports += " if " + r.L7.String()
	}
	if r.Direction == Egress {
		return fmt.Sprintf("%s egress to %s%s", r.Action, peers, ports)
	}
	return fmt.Sprintf("%s ingress from %s%s", r.Action, peers, ports)
}

// list is the texts of items, with something between them.
func list[S ~[]T, T fmt.Stringer](items S, between string) string {
	parts := make([]string, len(items))
	for i, v := range items {
		parts[i] = v.String()
	}
	return strings.Join(parts, between)
}
