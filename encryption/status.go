package encryption

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/route"
)

// rejectAfter is how long a session is used after its handshake (WireGuard's REJECT_AFTER_TIME). A peer whose last
// handshake is older is idle, or does not answer.
const rejectAfter = 180 * time.Second

// status is the line of `myelin status`.
func (f *Feature) status() feature.Status {
	s := feature.Status{
		Name: "Encryption", State: feature.Off, Wanted: "encryption.enabled: false", Chosen: "off",
		Why: "packets between nodes travel in plain text",
	}
	if !f.Config.Encryption.Enabled {
		return s
	}
	txn := f.DB.ReadTxn()
	peers := slices.DeleteFunc(statedb.Collect(f.encryption.Peers.All(txn)), func(p *Peer) bool {
		return p.On != DeviceName
	})
	s.State, s.Wanted, s.Why = feature.OK, "encryption.type: wireguard", "in the kernel, device "+DeviceName
	s.Chosen = "WireGuard, " + feature.Plural(len(peers), "peer")
	s.Cost = fmt.Sprintf("%d bytes of each packet, and the cipher", route.EncryptionOverhead)
	if about, _, ok := f.encryption.control.processes.of(DeviceName); ok {
		f.inProcess(&s, about)
	}
	for row := range f.encryption.Device.All(txn) {
		if row.Status.Kind == reconciler.StatusKindError {
			s.Break(row.Status.GetError())
		}
	}
	if text := f.nodesTraffic(txn); text != "" {
		s.Why += "; " + text
	}
	if text := f.encryption.rotates(txn); text != "" {
		s.Why += "; " + text
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
	plain := f.plainNodes(txn)
	feature.First(plain, len(plain), func(node string) {
		s.FallBack("packets to node " + node + " are not encrypted: it has not published a key")
	})
	return s
}

// plainNodes are other nodes without a key, by name.
func (f *Feature) plainNodes(txn statedb.ReadTxn) (names []string) {
	for n := range f.Cluster.Nodes.All(txn) {
		if n.Name != f.Config.Myelin.NodeName && n.WireGuardKey == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// nodeRow is a row of `myelin encrypt status`: another node, and how packets travel to it.
type nodeRow struct {
	Node        string    `json:"node"`
	Encrypted   bool      `json:"encrypted"`
	Why         string    `json:"why,omitempty"` // it is not encrypted, or does not work
	PublicKey   string    `json:"publicKey,omitempty"`
	Endpoint    string    `json:"endpoint,omitempty"`
	AllowedIPs  string    `json:"allowedIPs,omitempty"`
	Handshake   time.Time `json:"handshake,omitzero"`    // the last one
	NodeTraffic string    `json:"nodeTraffic,omitempty"` // between this node itself and that one
	Received    int64     `json:"receivedBytes"`
	Sent        int64     `json:"sentBytes"`

	now time.Time
}

func (*nodeRow) TableHeader() []string {
	return []string{"Node", "Encrypted", "Node traffic", "Handshake", "Received", "Sent", "Endpoint", "Public key",
		"Why"}
}

func (r *nodeRow) TableRow() []string {
	handshake := "-"
	if !r.Handshake.IsZero() {
		handshake = r.now.Sub(r.Handshake).Truncate(time.Second).String() + " ago"
	}
	return []string{r.Node, fmt.Sprint(r.Encrypted), cmp.Or(r.NodeTraffic, "-"), handshake,
		strconv.FormatInt(r.Received, 10), strconv.FormatInt(r.Sent, 10), cmp.Or(r.Endpoint, "-"),
		cmp.Or(r.PublicKey, "-"), cmp.Or(r.Why, "-")}
}

// WideHeader names the columns of WideRow.
func (*nodeRow) WideHeader() []string { return []string{"Allowed IPs"} }

// WideRow has what -o wide shows beside TableRow.
func (r *nodeRow) WideRow() []string { return []string{cmp.Or(r.AllowedIPs, "-")} }

// selfRow is a row of `myelin encrypt device`.
type selfRow struct {
	Device    string    `json:"device"`
	Mode      string    `json:"mode"`
	PublicKey string    `json:"publicKey"`
	Since     time.Time `json:"since"` // when the key was made
	Port      int       `json:"port"`
	MTU       int       `json:"mtu"`
	Peers     int       `json:"peers"`
	Memory    uint64    `json:"memoryBytes,omitempty"` // of the process that is the device; 0: the kernel is

	now time.Time
}

func (*selfRow) TableHeader() []string {
	return []string{"Device", "Mode", "Public key", "Key age", "Port", "MTU", "Peers", "Memory"}
}

func (r *selfRow) TableRow() []string {
	memory := "-"
	if r.Memory > 0 {
		memory = strconv.FormatUint(r.Memory>>20, 10) + " MB"
	}
	return []string{r.Device, r.Mode, r.PublicKey, r.now.Sub(r.Since).Truncate(time.Second).String(),
		strconv.Itoa(r.Port), strconv.Itoa(r.MTU), strconv.Itoa(r.Peers), memory}
}

func (f *Feature) lists() map[string]feature.List {
	return map[string]feature.List{
		"encryption":      {Header: (*nodeRow)(nil).TableHeader(), Each: f.eachNode},
		"encryption-self": {Header: (*selfRow)(nil).TableHeader(), Each: f.eachSelf},
	}
}

func (f *Feature) eachSelf(yield func(feature.Row) bool) error {
	if !f.Config.Encryption.Enabled {
		return nil
	}
	k, _ := f.encryption.keys.get()
	for want := range f.encryption.Device.All(f.DB.ReadTxn()) {
		if !want.Wanted {
			continue
		}
		d, err := f.encryption.control.Device(want.Name)
		if err != nil {
			return fmt.Errorf("read WireGuard device %s: %w", want.Name, err)
		}
		row := &selfRow{Device: d.Name, Mode: d.Type.String(), PublicKey: d.PublicKey.String(), Port: d.ListenPort,
			Peers: len(d.Peers), Since: k.current.since, MTU: want.MTU, now: time.Now(),
			Memory: f.encryption.control.processes.memory(want.Name)}
		if row.PublicKey == k.next.public {
			row.Since = k.next.since
		}
		if !yield(row) {
			break
		}
	}
	return nil
}

func (f *Feature) eachNode(yield func(feature.Row) bool) error {
	txn := f.DB.ReadTxn()
	found := map[string]wgtypes.Peer{}
	why := "encryption.enabled is false"
	if f.Config.Encryption.Enabled {
		why = "it has not published a key"
		d, err := f.encryption.control.Device(DeviceName)
		if err != nil {
			return fmt.Errorf("read peers of WireGuard device %s: %w", DeviceName, err)
		}
		for _, p := range d.Peers {
			found[p.PublicKey.String()] = p
		}
	}
	nodes := statedb.Collect(f.Cluster.Nodes.All(txn))
	slices.SortFunc(nodes, func(a, b *cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if n.Name == f.Config.Myelin.NodeName {
			continue
		}
		row := &nodeRow{Node: n.Name, PublicKey: n.WireGuardKey, Why: why, now: time.Now()}
		if n.WireGuardKey != "" && f.Config.Encryption.Enabled {
			want, _, _ := f.encryption.Peers.Get(txn, peerByKey(DeviceName, n.WireGuardKey))
			row.fill(want, found[n.WireGuardKey])
		}
		row.NodeTraffic = f.nodeTraffic(txn, n)
		if !yield(row) {
			break
		}
	}
	return nil
}

// fill adds what the table wants of a peer, nil if it has no row yet, and what the device says.
func (r *nodeRow) fill(want *Peer, p wgtypes.Peer) {
	r.Encrypted, r.Why = true, ""
	if want != nil && want.Status.Kind == reconciler.StatusKindError {
		r.Why = want.Status.GetError()
	}
	if p.PublicKey == (wgtypes.Key{}) {
		r.Why = cmp.Or(r.Why, "the device does not have the peer yet")
		return
	}
	if p.Endpoint != nil {
		r.Endpoint = p.Endpoint.String()
	}
	var allowed []netip.Prefix
	for _, ip := range p.AllowedIPs {
		if prefix, err := netip.ParsePrefix(ip.String()); err == nil {
			allowed = append(allowed, prefix)
		}
	}
	r.AllowedIPs = joinPrefixes(allowed)
	r.Handshake, r.Received, r.Sent = p.LastHandshakeTime, p.ReceiveBytes, p.TransmitBytes
	if r.Handshake.IsZero() {
		r.Why = cmp.Or(r.Why, "no handshake yet")
	} else if r.now.Sub(r.Handshake) > rejectAfter {
		r.Why = cmp.Or(r.Why, "idle")
	}
}

// commands are those that show encryption.
func commands() []feature.Command {
	return []feature.Command{
		{Name: "encrypt", Alias: "encryption", Short: "Inspect encryption between nodes", Views: []feature.View{
			{Name: "status", Table: "encryption",
				Short: "List the other nodes, and whether packets to them are encrypted"},
			{Name: "device", Table: "encryption-self", Short: "Show the device, and this node's public key or epoch"},
			{Name: "peers", Table: "encryption-peers", Short: "List the peers that WireGuard's device must have"},
			{Name: "ipsec-peers", Table: "ipsec-peers", Short: "List the nodes that IPsec has keys for"},
			{Name: "states", Table: "encryption-states", Short: "List IPsec's states in the kernel, and what passed"},
			{Name: "errors", Table: "encryption-errors", Short: "List what IPsec in the kernel has dropped, and why"},
		}},
	}
}
