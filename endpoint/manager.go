package endpoint

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"

	"myelin/endpoint/podlink"
	"myelin/ipam"
)

// Errors that callers of Manager tell apart.
var (
	// ErrExists: the attachment is already there, or its interface name is taken.
	ErrExists = errors.New("attachment exists already")
	// ErrNotFound: Check of an attachment that is not there.
	ErrNotFound = errors.New("no such attachment")
	// ErrNotRestored: Add before Restore has finished.
	ErrNotRestored = errors.New("endpoints are not restored yet")
	// ErrReconcile: the datapath did not accept the endpoint.
	ErrReconcile = errors.New("datapath refused the endpoint")
	// ErrState: the endpoint's state can't be written to the run directory.
	ErrState = errors.New("state of the endpoint can't be written")
)

// NodeConfig is what every pod of the node has in common.
type NodeConfig struct {
	// IPv4 and IPv6 tell which families a pod must have.
	IPv4, IPv6 bool
	// Gateway4 and Gateway6 are network + 1 of the node's podCIDRs.
	Gateway4, Gateway6 netip.Addr
	// MTU of pod links, bytes of layer 3, and of the routes in pods: what the
	// wires bring, and what pods may send. RouteMTU is 0 where that is the same.
	MTU, RouteMTU int
	// Kind of the links of new pods; empty is Veth.
	Kind podlink.Kind
}

// Config of a Manager. RunDir and Node are required.
type Config struct {
	// RunDir is the agent's run directory; state files are in RunDir/endpoints.
	RunDir string
	// Node is asked at every Add.
	Node func() NodeConfig
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Ready, if set, is waited for after the datapath has taken the endpoint:
	// what else must know the pod before ADD answers.
	Ready func(context.Context, *Endpoint) error
	// Elsewhere, if set, says whether a pod that is not the one that is being
	// added has an address, though it is no endpoint: another network gave it.
	Elsewhere func(addr netip.Addr, namespace, pod string) bool
	// Step, if set, is called with the name of each step of Add and Delete that
	// has just been done. An error fails the operation there; tests panic in it
	// to act a crash.
	Step func(step string) error
}

// Manager makes and removes the interfaces of the node's pods. Its methods are
// safe for concurrent use; operations on different attachments run in parallel.
type Manager struct {
	log      *slog.Logger
	db       *statedb.DB
	table    statedb.RWTable[*Endpoint]
	ipam     *ipam.Allocator
	driver   podlink.Driver
	config   Config
	store    store
	slots    *slots
	locks    locks
	initDone func(statedb.WriteTxn)
	restored atomic.Bool

	background background // deletions that were answered already
}

// NewManager makes a manager and registers an initializer on the table, so that
// reconcilers prune nothing before Restore has filled it. allocator must be
// fresh: Restore claims what is in use.
func NewManager(log *slog.Logger, db *statedb.DB, table statedb.RWTable[*Endpoint],
	allocator *ipam.Allocator, driver podlink.Driver, config Config,
) *Manager {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Step == nil {
		config.Step = func(string) error { return nil }
	}
	m := &Manager{
		log: log, db: db, table: table, ipam: allocator, driver: driver, config: config,
		store:      storeIn(config.RunDir),
		slots:      newSlots(config.Now),
		locks:      locks{held: make(map[Attachment]*lock)},
		background: newBackground(),
	}
	txn := db.WriteTxn(table)
	m.initDone = table.RegisterInitializer(txn, "restore")
	txn.Commit()
	return m
}

// Request asks for an interface in a pod.
type Request struct {
	ContainerID string
	IfName      string
	NetNS       string // path
	Namespace   string
	Pod         string
	PodUID      string
}

// attachment is what the request is for.
func (r Request) attachment() Attachment { return Attachment{r.ContainerID, r.IfName} }

// LinkPrefix begins the names of all host sides.
const LinkPrefix = "mye"

// IsLinkName reports whether a device's name is one that linkName gives.
func IsLinkName(name string) bool {
	code, ok := strings.CutPrefix(name, LinkPrefix)
	return ok && len(code) == 8 && strings.Trim(code, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// linkName derives the name of the host side: "mye" and 40 bits of a hash, so
// that DEL finds the link even if nothing else is known any more.
func linkName(a Attachment) string {
	sum := sha256.Sum256([]byte(a.String()))
	return LinkPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// linkMAC derives a locally administered unicast address for one side of the
// link. It differs between attachments that share nothing but a moment.
func linkMAC(a Attachment, side string, created time.Time) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", side, a, created.UnixNano()))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

// Node returns what every pod of the node has in common, now.
func (m *Manager) Node() NodeConfig { return m.config.Node() }

// spec is the pod link that e describes.
func (m *Manager) spec(e *Endpoint) podlink.Spec {
	node := m.config.Node()
	return podlink.Spec{
		Kind: e.Kind, Name: e.LinkName, LinkMAC: e.LinkMAC, NetNS: e.NetNS, IfName: e.IfName, PodMAC: e.PodMAC,
		MTU: e.MTU, RouteMTU: e.RouteMTU,
		IPv4: e.IPv4, IPv6: e.IPv6, Gateway4: node.Gateway4, Gateway6: node.Gateway6,
	}
}

// find returns the row of an attachment, nil if there is none.
func (m *Manager) find(a Attachment) *Endpoint {
	e, _, _ := m.table.Get(m.db.ReadTxn(), byAttachment(a))
	return e
}

func (m *Manager) insert(e *Endpoint) error {
	txn := m.db.WriteTxn(m.table)
	defer txn.Abort()
	if _, _, err := m.table.Insert(txn, e); err != nil {
		return fmt.Errorf("insert endpoint %d: %w", e.ID, err)
	}
	txn.Commit()
	return nil
}

func (m *Manager) deleteRow(e *Endpoint) error {
	txn := m.db.WriteTxn(m.table)
	defer txn.Abort()
	if _, _, err := m.table.Delete(txn, e); err != nil {
		return fmt.Errorf("delete endpoint %d: %w", e.ID, err)
	}
	txn.Commit()
	return nil
}

// Check compares an attachment with the kernel and returns the first
// difference. It wraps ErrNotFound when there is no such attachment.
func (m *Manager) Check(ctx context.Context, a Attachment) (*Endpoint, error) {
	release, err := m.locks.acquire(ctx, a)
	if err != nil {
		return nil, err
	}
	defer release()
	e := m.find(a)
	if e == nil {
		return nil, fmt.Errorf("check %s: %w", a, ErrNotFound)
	}
	if text := e.Status.GetError(); text != "" {
		return nil, fmt.Errorf("check %s: %w: %s", a, ErrReconcile, text)
	}
	if err := m.driver.Check(m.spec(e)); err != nil {
		return nil, fmt.Errorf("check %s: %w", a, err)
	}
	return e, nil
}
