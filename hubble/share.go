package hubble

import (
	"sync"
	"sync/atomic"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// sharedSlots is how many conversions are kept for other readers: followers further apart convert on their own.
const sharedSlots = 1024

// shared has what readers that follow have converted, so that each flow is converted and encoded once for all of them.
// Only with two readers or more something is kept: the names of flows are those of now for everyone else.
type shared struct {
	readers atomic.Int32
	slots   [sharedSlots]atomic.Pointer[conversion]
}

// conversion is an event as a flow. Readers with another view of the flow's direction do not use it.
type conversion struct {
	pos       uint64
	way       way
	first     bool
	converted sync.Once
	flow      *flowpb.Flow // not changed: it is sent by several readers
	encoded   sync.Once
	response  []byte
	err       error
}

// is reports whether it is the conversion of the event at a position, for readers with that view.
func (c *conversion) is(pos uint64, w way, first bool) bool {
	return c != nil && c.pos == pos && c.way == w && c.first == first
}

// join is called by a reader before it follows.
func (s *shared) join() { s.readers.Add(1) }

// leave is called by a reader that no longer follows. The last but one clears what is kept.
func (s *shared) leave() {
	if s.readers.Add(-1) > 1 {
		return
	}
	for i := range s.slots {
		s.slots[i].Store(nil)
	}
}

// flow returns the conversion of the event at a position. It calls convert unless another reader has done so.
func (s *shared) flow(pos uint64, w way, first bool, convert func() *flowpb.Flow) *conversion {
	c := &conversion{pos: pos, way: w, first: first}
	if s.readers.Load() > 1 {
		slot := &s.slots[pos%sharedSlots]
		old := slot.Load()
		switch {
		case old.is(pos, w, first):
			c = old
		case old == nil || old.pos < pos:
			if !slot.CompareAndSwap(old, c) { // another reader was first
				if now := slot.Load(); now.is(pos, w, first) {
					c = now
				}
			}
		}
	}
	// A reader waits for one that converts the same event, which takes less than to do so again.
	c.converted.Do(func() { c.flow = convert() })
	return c
}

// encode returns a response with the whole flow in the wire format.
func (c *conversion) encode(response func() *observerpb.GetFlowsResponse) ([]byte, error) {
	c.encoded.Do(func() { c.response, c.err = proto.Marshal(response()) })
	return c.response, c.err
}

// wire is a message in the wire format.
type wire []byte

// codec sends messages of type wire as they are, and others as gRPC does.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encodingproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if w, ok := v.(wire); ok {
		return mem.BufferSlice{mem.SliceBuffer(w)}, nil
	}
	return c.CodecV2.Marshal(v)
}
