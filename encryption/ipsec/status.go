package ipsec

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/route"
)

// status is the line of `myelin status`.
func (f *Feature) status() feature.Status {
	secrets, _ := f.ipsec.secrets()
	txn := f.DB.ReadTxn()
	peers := statedb.Collect(f.ipsec.Peers.All(txn))
	s := feature.Status{
		Name: "Encryption", State: feature.OK, Wanted: "encryption.type: ipsec",
		Chosen: "IPsec, " + feature.Plural(len(peers), "peer"), Why: "ESP in the kernel, device " + DeviceName,
		Cost: fmt.Sprintf("%d bytes of each packet, and the cipher", route.EncryptionOverhead),
	}
	if len(secrets) > 0 {
		s.Chosen += fmt.Sprintf(", key %d", secrets[0].ID)
	}
	if counted, err := f.ipsec.readStat(); err == nil && len(counted.errors()) > 0 {
		s.Why += "; packets lost: " + strings.Join(counted.errors(), ", ")
	}
	if err := f.ipsec.keyError(); err != nil {
		s.Break(err.Error())
	}
	if row, _, ok := f.ipsec.Device.Get(txn, deviceByName(DeviceName)); ok &&
		row.Status.Kind == reconciler.StatusKindError {
		s.Break(row.Status.GetError())
	}
	var failing []string
	for _, p := range peers {
		if p.Status.Kind == reconciler.StatusKindError {
			failing = append(failing, p.Status.GetError())
		}
	}
	feature.First(failing, len(failing), s.Break)
	if err := f.published.Load(); err != nil && *err != nil {
		s.Break((*err).Error())
	}
	var plain []string
	for n := range f.Cluster.Nodes.All(txn) {
		if n.Name != f.Config.Myelin.NodeName && !n.Encrypts(cluster.IPsecType) {
			plain = append(plain, n.Name)
		}
	}
	feature.First(plain, len(plain), func(node string) {
		s.FallBack("packets to node " + node + " are not encrypted: it has not published an epoch")
	})
	return s
}

// nodeRow is a row of `myelin encrypt status`: another node, and how packets travel to it.
type nodeRow struct {
	Node      string `json:"node"`
	Encrypted bool   `json:"encrypted"`
	Why       string `json:"why,omitempty"` // it is not encrypted, or does not work
	Endpoint  string `json:"endpoint,omitempty"`
	Key       int    `json:"key,omitempty"` // of packets to the node
	Received  uint64 `json:"receivedBytes"`
	Sent      uint64 `json:"sentBytes"`
	Prefixes  string `json:"prefixes,omitempty"`
}

func (*nodeRow) TableHeader() []string {
	return []string{"Node", "Encrypted", "Received", "Sent", "Endpoint", "Key", "Why"}
}

func (r *nodeRow) TableRow() []string {
	return []string{r.Node, fmt.Sprint(r.Encrypted), strconv.FormatUint(r.Received, 10),
		strconv.FormatUint(r.Sent, 10), cmp.Or(r.Endpoint, "-"), strconv.Itoa(r.Key), cmp.Or(r.Why, "-")}
}

// WideHeader names the columns of WideRow.
func (*nodeRow) WideHeader() []string { return []string{"Prefixes"} }

// WideRow has what -o wide shows beside TableRow.
func (r *nodeRow) WideRow() []string { return []string{cmp.Or(r.Prefixes, "-")} }

// stateRow is a row of `myelin encrypt states`.
type stateRow struct {
	SPI       string `json:"spi"`
	From      string `json:"from"`
	To        string `json:"to"`
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Replayed  uint32 `json:"replayed"`  // packets that came twice, or too late
	Integrity uint32 `json:"integrity"` // packets that did not have the right tag
}

func (*stateRow) TableHeader() []string {
	return []string{"SPI", "From", "To", "Packets", "Bytes", "Replayed", "Bad tag"}
}

func (r *stateRow) TableRow() []string {
	return []string{r.SPI, r.From, r.To, strconv.FormatUint(r.Packets, 10), strconv.FormatUint(r.Bytes, 10),
		strconv.FormatUint(uint64(r.Replayed), 10), strconv.FormatUint(uint64(r.Integrity), 10)}
}

// deviceRow is a row of `myelin encrypt device`.
type deviceRow struct {
	Device string `json:"device"`
	MTU    int    `json:"mtu"`
	Keys   string `json:"keys"`  // identifiers, newest first
	Epoch  string `json:"epoch"` // of this node
	Peers  int    `json:"peers"`
}

func (*deviceRow) TableHeader() []string { return []string{"Device", "MTU", "Keys", "Epoch", "Peers"} }

func (r *deviceRow) TableRow() []string {
	return []string{r.Device, strconv.Itoa(r.MTU), r.Keys, r.Epoch, strconv.Itoa(r.Peers)}
}

func (f *Feature) lists() map[string]feature.List {
	return map[string]feature.List{
		"encryption":        {Header: (*nodeRow)(nil).TableHeader(), Each: f.eachNode},
		"encryption-self":   {Header: (*deviceRow)(nil).TableHeader(), Each: f.eachSelf},
		"encryption-states": {Header: (*stateRow)(nil).TableHeader(), Each: f.eachState},
		"encryption-errors": {Header: (*statRow)(nil).TableHeader(), Each: f.eachError},
	}
}

func (f *Feature) eachSelf(yield func(feature.Row) bool) error {
	secrets, _ := f.ipsec.secrets()
	var ids []string
	for _, s := range secrets {
		ids = append(ids, strconv.Itoa(s.ID))
	}
	txn := f.DB.ReadTxn()
	row := &deviceRow{Device: DeviceName, Keys: strings.Join(ids, ","), Epoch: f.ipsec.epochs.current(),
		Peers: f.ipsec.Peers.NumObjects(txn)}
	if d, _, ok := f.ipsec.Device.Get(txn, deviceByName(DeviceName)); ok {
		row.MTU = d.MTU
	}
	yield(row)
	return nil
}

func (f *Feature) eachState(yield func(feature.Row) bool) error {
	states, err := listStates(f.ipsec.kernel)
	if err != nil {
		return err
	}
	slices.SortFunc(states, func(a, b netlink.XfrmState) int {
		return cmp.Or(strings.Compare(a.Src.String(), b.Src.String()), strings.Compare(a.Dst.String(), b.Dst.String()),
			cmp.Compare(a.Spi, b.Spi))
	})
	for i := range states {
		x := &states[i]
		row := &stateRow{SPI: fmt.Sprintf("%#08x", uint32(x.Spi)), From: x.Src.String(), To: x.Dst.String(),
			Packets: x.Statistics.Packets, Bytes: x.Statistics.Bytes,
			Replayed: x.Statistics.Replay + x.Statistics.ReplayWindow, Integrity: x.Statistics.Failed}
		if !yield(row) {
			break
		}
	}
	return nil
}

// traffic is the bytes of states, by the addresses of the outer header.
func traffic(states []netlink.XfrmState) map[[2]netip.Addr]uint64 {
	bytes := map[[2]netip.Addr]uint64{}
	for i := range states {
		from, _ := netip.AddrFromSlice(states[i].Src)
		to, _ := netip.AddrFromSlice(states[i].Dst)
		bytes[[2]netip.Addr{from.Unmap(), to.Unmap()}] += states[i].Statistics.Bytes
	}
	return bytes
}

func (f *Feature) eachNode(yield func(feature.Row) bool) error {
	states, err := listStates(f.ipsec.kernel)
	if err != nil {
		return err
	}
	bytes, txn := traffic(states), f.DB.ReadTxn()
	nodes := statedb.Collect(f.Cluster.Nodes.All(txn))
	slices.SortFunc(nodes, func(a, b *cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if n.Name == f.Config.Myelin.NodeName {
			continue
		}
		row := &nodeRow{Node: n.Name, Encrypted: n.Encrypts(cluster.IPsecType), Why: "it has not published an epoch"}
		if p, _, ok := f.ipsec.Peers.Get(txn, peerOf(n.Name)); row.Encrypted && ok {
			row.Why, row.Endpoint, row.Key = "", p.Way.To.String(), p.Out
			row.Prefixes = joinPrefixes(p.Prefixes)
			row.Sent = bytes[[2]netip.Addr{p.Way.From, p.Way.To}]
			row.Received = bytes[[2]netip.Addr{p.Way.To, p.Way.From}]
			if p.Status.Kind == reconciler.StatusKindError {
				row.Why = p.Status.GetError()
			} else if p.Out != n.IPsec.Key {
				row.Why = fmt.Sprintf("this node has no key %d, which the node has published", n.IPsec.Key)
			}
		} else if row.Encrypted {
			row.Why = "no key yet"
		}
		if !yield(row) {
			break
		}
	}
	return nil
}

func (f *Feature) metrics(s feature.Sink) {
	txn := f.DB.ReadTxn()
	secrets, _ := f.ipsec.secrets()
	s.Gauge("myelin_ipsec_keys", "Number of keys in use.", float64(len(secrets)), nil)
	own := map[netip.Addr]bool{}
	for p := range f.ipsec.Peers.All(txn) {
		own[p.Way.From] = true
	}
	states, err := listStates(f.ipsec.kernel)
	if err != nil {
		s.Failed("myelin_ipsec_xfrm_states", err)
		return
	}
	count := map[string]int{"in": 0, "out": 0}
	for i := range states {
		direction := "in"
		if from, _ := netip.AddrFromSlice(states[i].Src); own[from.Unmap()] {
			direction = "out"
		}
		count[direction]++
	}
	for direction, n := range count {
		s.Gauge("myelin_ipsec_xfrm_states", "Number of XFRM states.", float64(n),
			prometheus.Labels{"direction": direction})
	}
	counted, err := f.ipsec.readStat()
	if err != nil {
		s.Failed("myelin_ipsec_xfrm_error", err)
		return
	}
	for _, c := range counted {
		if kind, name := labels(c.name); kind != "" {
			s.Gauge("myelin_ipsec_xfrm_error", "Number of errors of XFRM, of all that the node has.",
				float64(c.packets), prometheus.Labels{"type": kind, "error": name})
		}
	}
}
