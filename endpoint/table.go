package endpoint

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// tableName is the name of the endpoint table in statedb.
const tableName = "endpoints"

// Attachment identifies one interface of one container, as CNI does.
type Attachment struct {
	ContainerID string
	IfName      string
}

func (a Attachment) String() string { return a.ContainerID + "/" + a.IfName }

// Attachment returns the identity that CNI calls the endpoint by.
func (e *Endpoint) Attachment() Attachment { return Attachment{e.ContainerID, e.IfName} }

// The indexes are values, never written: statedb wants them comparable by name
// and gives no other place for them.
var (
	idIndex = statedb.Index[*Endpoint, uint16]{
		Name:       "id",
		FromObject: func(e *Endpoint) index.KeySet { return index.NewKeySet(index.Uint16(e.ID)) },
		FromKey:    index.Uint16,
		FromString: index.Uint16String,
		Unique:     true,
	}
	attachmentIndex = statedb.Index[*Endpoint, Attachment]{
		Name:       "attachment",
		FromObject: func(e *Endpoint) index.KeySet { return index.NewKeySet(index.Stringer(e.Attachment())) },
		FromKey:    index.Stringer[Attachment],
		FromString: index.FromString,
		Unique:     true,
	}
	// A pod may have more than one interface, and for a moment the row of a
	// deleted pod and that of its successor hold the same name.
	podIndex = statedb.Index[*Endpoint, string]{
		Name:       "pod",
		FromObject: func(e *Endpoint) index.KeySet { return index.NewKeySet(index.String(e.PodName())) },
		FromKey:    index.String,
		FromString: index.FromString,
	}
	addressIndex = statedb.Index[*Endpoint, netip.Addr]{
		Name: "address",
		FromObject: func(e *Endpoint) index.KeySet {
			var keys []index.Key
			for _, a := range e.Addresses() {
				keys = append(keys, index.NetIPAddr(a))
			}
			return index.NewKeySet(keys...)
		},
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}
)

// NewTable makes the table of endpoints in db.
func NewTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(db, tableName, idIndex, attachmentIndex, podIndex, addressIndex)
}

// ByID queries the endpoint of a slot.
func ByID(id uint16) statedb.Query[*Endpoint] { return idIndex.Query(id) }

// byAttachment queries the endpoint of a container's interface.
func byAttachment(a Attachment) statedb.Query[*Endpoint] { return attachmentIndex.Query(a) }

// ByPod queries the endpoints of "namespace/name".
func ByPod(name string) statedb.Query[*Endpoint] { return podIndex.Query(name) }

// ByAddress queries the endpoint that has an IPv4 or IPv6 address.
func ByAddress(a netip.Addr) statedb.Query[*Endpoint] { return addressIndex.Query(a) }
