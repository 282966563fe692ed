package bpf

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// DumpRow is a row of a map, field by field.
type DumpRow struct {
	Key, Value []DumpField
}

// DumpField is a field of a key or value. Fields inside others have their name
// in front: "side[0].packets".
type DumpField struct {
	Name string
	Text string
}

// TableHeader names the columns of TableRow.
func (*DumpRow) TableHeader() []string { return []string{"Key", "Value"} }

// TableRow is the row as text, with the fields that are not zero.
func (r *DumpRow) TableRow() []string { return []string{line(r.Key), line(r.Value)} }

func line(fields []DumpField) string {
	var words []string
	for _, f := range fields {
		switch {
		case f.Name == "":
			words = append(words, f.Text)
		case f.Text != "0" && f.Text != "":
			words = append(words, f.Name+"="+f.Text)
		}
	}
	return strings.Join(words, " ")
}

// MarshalJSON writes key and value as objects of text, in the datapath's order.
func (r *DumpRow) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"key":%s,"value":%s}`, object(r.Key), object(r.Value)), nil
}

func object(fields []DumpField) string {
	if len(fields) == 1 && fields[0].Name == "" {
		return quote(fields[0].Text)
	}
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = quote(f.Name) + ":" + quote(f.Text)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func quote(s string) string {
	b, _ := json.Marshal(s) // text can't fail
	return string(b)
}

// Dump calls fn for the rows of the map of a name until it returns false.
// Arrays yield the rows that are not zero.
func (d *Datapath) Dump(name string, fn func(*DumpRow) bool) error {
	switch name {
	case "endpoints":
		return dump[DatapathAddr, DatapathEndpoint](d.Endpoints, fn)
	case "pod_links":
		return dump[uint32, DatapathPodLink](d.PodLinks, fn)
	case "epochs":
		return dumpEpochs(d.Epochs, fn)
	case "paths":
		return CachedPaths(d.Paths, ofCPU[DatapathCachedPath](fn))
	case "flow_cache":
		return cachedFlows(d.FlowCache, ofCPU[DatapathCachedFlow](fn))
	case "policy_pairs":
		return eachOfCPUs(d.PolicyPairs, func(p *DatapathPolicyPair) bool {
			return p.Generation != 0
		}, ofCPU[DatapathPolicyPair](fn))
	case "traced_flows":
		return eachOfCPUs(d.TracedFlows, func(f *DatapathTracedFlow) bool {
			return f.Tag != 0
		}, ofCPU[DatapathTracedFlow](fn))
	case "prefixes":
		return dump[DatapathPrefixKey, DatapathPrefix](d.Prefixes, fn)
	case "wires":
		return dump[uint32, DatapathWire](d.Wires, fn)
	case "policies":
		return dump[uint32, DatapathEndpointPolicy](d.Policies, fn)
	case "bandwidths":
		return dump[DatapathBandwidthKey, DatapathBandwidth](d.Bandwidths, fn)
	case "peers", "denylist":
		return dump[DatapathAddr, uint32](d.mapByName(name), fn)
	case "peer_prefixes", "denylist_prefixes":
		return dump[DatapathPrefixKey, uint32](d.mapByName(name), fn)
	case "peer_classes":
		return dump[DatapathPeerClassKey, DatapathPeerClass](d.PeerClasses, fn)
	case "verdicts":
		return dump[DatapathVerdictKey, DatapathVerdict](d.Verdicts, fn)
	case "names":
		return dump[DatapathNameKey, DatapathName](d.Names, fn)
	case "dns_entries":
		return dump[DatapathDnsKey, DatapathDnsEntry](d.DnsEntries, fn)
	case "proxy_device":
		return dump[uint32, DatapathProxyDevices](d.ProxyDevice, fn)
	case "flows":
		return dump[DatapathFlowKey, DatapathFlow](d.Flows, fn)
	case "fragments":
		return dump[DatapathFragmentKey, DatapathFragmentRow](d.Fragments, fn)
	case "pod_netns":
		return dump[uint32, DatapathNetns](d.PodNetns, fn)
	}
	return d.dumpServices(name, fn)
}

// dumpServices is Dump for the maps of Services.
func (d *Datapath) dumpServices(name string, fn func(*DumpRow) bool) error {
	switch name {
	case "frontends":
		return dump[DatapathFrontendKey, DatapathFrontend](d.Frontends, fn)
	case "backend_slots":
		return dump[DatapathBackendSlotsKey, DatapathBackendSlotsRow](d.BackendSlots, fn)
	case "maglev_tables":
		return dump[DatapathBackendSlotsKey, DatapathMaglevRow](d.MaglevTables, fn)
	case "backends":
		return dump[uint32, DatapathBackend](d.Backends, fn)
	case "affinities":
		return dump[DatapathAffinityKey, DatapathAffinity](d.Affinities, fn)
	case "origins":
		return dump[DatapathOriginKey, DatapathOrigin](d.Origins, fn)
	case "nat_entries":
		return dump[DatapathNatTuple, DatapathNatEntry](d.NatEntries, fn)
	case "nat_replies":
		return dump[DatapathNatTuple, DatapathNatReply](d.NatReplies, fn)
	case "nat_ring":
		return dump[uint32, DatapathNatTuple](d.NatRing, fn)
	case "source_ranges":
		return dump[DatapathSourceRangeKey, uint32](d.SourceRanges, fn)
	case "members":
		return dump[DatapathMemberKey, uint32](d.Members, fn)
	case "probes":
		return dump[DatapathNatTuple, DatapathProbe](d.Probes, fn)
	case "quic_servers":
		return dump[DatapathQuicServerKey, uint32](d.QuicServers, fn)
	case "xdp_ports":
		return dump[DatapathXdpPort, uint32](d.XdpPorts, fn)
	case "loads", "shares", "xdp_vids", "xdp_wires":
		return dump[uint32, uint32](d.mapByName(name), fn)
	case "port_indexes":
		return dump[DatapathNatTuple, DatapathPortIndex](d.PortIndexes, fn)
	case "service_stats":
		return d.EachServiceStat(func(i uint32, sum *DatapathServiceStat) bool {
			return fn(&DumpRow{fields(nil, "", reflect.ValueOf(i)), fields(nil, "", reflect.ValueOf(sum).Elem())})
		})
	}
	if !HasRows(name) {
		return fmt.Errorf("map %s has no rows to show: see drops and monitor", name)
	}
	return fmt.Errorf("there is no map %q", name)
}

// HasRows reports whether Dump shows the rows of a map of the datapath.
func HasRows(name string) bool {
	switch name {
	case "cpus", "dns_reports", "events", "flow_rates", "frontend_filter", "own_filter", "proxy_sockets",
		"socket_budgets", "socket_outcomes", "traces":
		return false
	}
	return true
}

// ofCPU makes rows of those of arrays per CPU.
func ofCPU[Row any](fn func(*DumpRow) bool) func(cpu int, index uint32, r *Row) bool {
	return func(cpu int, i uint32, r *Row) bool {
		key := []DumpField{{Name: "cpu", Text: strconv.Itoa(cpu)}, {Name: "index",
			Text: strconv.FormatUint(uint64(i), 10)}}
		return fn(&DumpRow{key, fields(nil, "", reflect.ValueOf(r).Elem())})
	}
}

func dump[K, V any](m *ebpf.Map, fn func(*DumpRow) bool) error {
	array := m.Type() == ebpf.Array
	return Each(m, func(key *K, value *V) bool {
		v := reflect.ValueOf(value).Elem()
		if array && v.IsZero() {
			return true
		}
		return fn(&DumpRow{fields(nil, "", reflect.ValueOf(key).Elem()), fields(nil, "", v)})
	})
}

// fields adds the fields of v, called name, to list. Padding is left out.
func fields(list []DumpField, name string, v reflect.Value) []DumpField {
	switch x := v.Interface().(type) {
	case DatapathAddr:
		return append(list, DumpField{name, addrText(x)})
	case DatapathMac:
		return append(list, DumpField{name, macText(x)})
	case DatapathPrefixKey:
		return append(list, DumpField{name, x.Netip().String()})
	case DatapathSourceRangeKey: // the Service's number comes before the prefix, and counts in its length
		prefix := DatapathPrefixKey{Length: x.Length - 32, Addr: x.Addr}
		list = append(list, DumpField{join(name, "service"), fmt.Sprint(x.Service)})
		return append(list, DumpField{join(name, "prefix"), prefix.Netip().String()})
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if field := strings.ToLower(f.Name); f.IsExported() && !strings.HasPrefix(field, "pad") {
				list = fields(list, join(name, field), v.Field(i))
			}
		}
		return list
	case reflect.Array:
		if b, ok := bytesOf(v); ok {
			return append(list, DumpField{name, hex.EncodeToString(b)})
		}
		for i := range v.Len() {
			list = fields(list, fmt.Sprintf("%s[%d]", name, i), v.Index(i))
		}
		return list
	}
	if strings.HasSuffix(strings.TrimRight(name, "[01]"), "port") && v.Kind() == reflect.Uint16 { // in network order
		return append(list, DumpField{name, fmt.Sprint(Port(uint16(v.Uint())))})
	}
	return append(list, DumpField{name, fmt.Sprint(v.Interface())})
}

func join(outer, inner string) string {
	if outer == "" {
		return inner
	}
	return outer + "." + inner
}

func bytesOf(v reflect.Value) ([]byte, bool) {
	if v.Type().Elem().Kind() != reflect.Uint8 {
		return nil, false
	}
	b := make([]byte, v.Len())
	reflect.Copy(reflect.ValueOf(b), v)
	return b, true
}

func addrText(a DatapathAddr) string {
	if addr := a.Netip(); addr.IsValid() {
		return addr.String()
	}
	return ""
}

func macText(m DatapathMac) string {
	if m.B == [6]byte{} {
		return ""
	}
	return net.HardwareAddr(m.B[:]).String()
}
