package query

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

// empty is the error about a filter without a value.
const empty = "want a value that is not empty"

func address(value string) error {
	if strings.Contains(value, "/") {
		_, err := netip.ParsePrefix(value)
		return err
	}
	_, err := netip.ParseAddr(value)
	return err
}

func port(value string) error {
	if _, err := strconv.ParseUint(value, 10, 16); err != nil {
		return errors.New("want a port from 0 to 65535")
	}
	return nil
}

func expression(value string) error {
	_, err := regexp.Compile(value)
	return err
}

func httpStatus(value string) error {
	if !regexp.MustCompile(`^[1-5]([0-9]{2}|[0-9]?\+)$`).MatchString(value) {
		return errors.New("want a status from 100 to 599, or its beginning and +")
	}
	return nil
}

func httpHeader(value string) (*flowpb.HTTPHeader, error) {
	name, rest, ok := strings.Cut(value, ":")
	if !ok || name == "" {
		return nil, errors.New("want NAME:VALUE")
	}
	return &flowpb.HTTPHeader{Key: name, Value: rest}, nil
}

func workload(value string) (*flowpb.Workload, error) {
	kind, name, ok := strings.Cut(value, "/")
	if !ok {
		kind, name = "", value
	}
	if kind == "" && name == "" {
		return nil, errors.New("want [KIND/]NAME")
	}
	return &flowpb.Workload{Kind: kind, Name: name}, nil
}

func device(value string) (*flowpb.NetworkInterface, error) {
	if value == "" {
		return nil, errors.New(empty)
	}
	return &flowpb.NetworkInterface{Name: value}, nil
}

func positive(value string) (uint64, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n == 0 {
		return 0, errors.New("want a number above 0")
	}
	return n, nil
}

func boolean(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return b, nil
}

// ReservedIdentities are the names of Cilium's reserved identities, by number.
func ReservedIdentities() []string {
	return []string{"unknown", "host", "world", "unmanaged", "health", "init", "remote-node", "kube-apiserver",
		"ingress", "world-ipv4", "world-ipv6"}
}

func identity(value string) (uint32, error) {
	if i := slices.Index(ReservedIdentities(), strings.TrimPrefix(value, "reserved:")); i >= 0 {
		return uint32(i), nil
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("want a number, or one of %s", strings.Join(ReservedIdentities(), ", "))
	}
	return uint32(n), nil
}

func protocols() []string {
	return []string{"icmp", "icmpv4", "icmpv6", "sctp", "tcp", "udp", "vrrp", "igmp", "dns", "http"}
}

func protocol(value string) error {
	if !slices.Contains(protocols(), strings.ToLower(value)) {
		return fmt.Errorf("want %s", strings.Join(protocols(), ", "))
	}
	return nil
}

func verdicts() []string {
	return []string{"FORWARDED", "DROPPED", "AUDIT", "REDIRECTED", "ERROR", "TRACED", "TRANSLATED"}
}

func verdict(value string) (flowpb.Verdict, error) {
	name := strings.ToUpper(value)
	if !slices.Contains(verdicts(), name) {
		return 0, fmt.Errorf("want %s", strings.Join(verdicts(), ", "))
	}
	return flowpb.Verdict(flowpb.Verdict_value[name]), nil
}

func dropReasons() (names []string) {
	for n := range 256 {
		if name, ok := flowpb.DropReason_name[int32(n)]; ok && n > 0 {
			names = append(names, name)
		}
	}
	return names
}

func dropReason(value string) (flowpb.DropReason, error) {
	n, ok := flowpb.DropReason_value[strings.ToUpper(value)]
	if !ok {
		return 0, errors.New("want a name of Hubble's DropReason, e.g. POLICY_DENIED")
	}
	return flowpb.DropReason(n), nil
}

func direction(value string) (flowpb.TrafficDirection, error) {
	switch strings.ToLower(value) {
	case "ingress":
		return flowpb.TrafficDirection_INGRESS, nil
	case "egress":
		return flowpb.TrafficDirection_EGRESS, nil
	}
	return 0, errors.New("want ingress or egress")
}

func ipVersion(value string) (flowpb.IPVersion, error) {
	switch strings.ToLower(value) {
	case "4", "v4", "ipv4", "ip4":
		return flowpb.IPVersion_IPv4, nil
	case "6", "v6", "ipv6", "ip6":
		return flowpb.IPVersion_IPv6, nil
	case "none":
		return flowpb.IPVersion_IP_NOT_USED, nil
	}
	return 0, errors.New("want v4, v6 or none")
}

func tcpFlags(value string) (*flowpb.TCPFlags, error) {
	f := &flowpb.TCPFlags{}
	places := map[string]*bool{"SYN": &f.SYN, "FIN": &f.FIN, "RST": &f.RST, "PSH": &f.PSH, "ACK": &f.ACK,
		"URG": &f.URG, "ECE": &f.ECE, "CWR": &f.CWR, "NS": &f.NS}
	for name := range strings.SplitSeq(value, ",") {
		place := places[strings.ToUpper(name)]
		if place == nil {
			return nil, errors.New("want SYN, FIN, RST, PSH, ACK, URG, ECE, CWR or NS, with commas between them")
		}
		*place = true
	}
	return f, nil
}
