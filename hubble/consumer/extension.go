package consumer

import (
	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/structpb"
)

// Extension returns the fields that Flow.extensions adds to Hubble's: Myelin's drop reason and rules. It is nil for a
// flow without extensions.
func Extension(f *flowpb.Flow) map[string]*structpb.Value {
	if f.GetExtensions() == nil {
		return nil
	}
	s := &structpb.Struct{}
	if f.GetExtensions().UnmarshalTo(s) != nil { // another type: not ours
		return nil
	}
	return s.GetFields()
}

// Counts are the packets and bytes that an extension has for a flow's report or
// end; false for a flow that is one packet.
func Counts(extension map[string]*structpb.Value) (packets, bytes uint64, ok bool) {
	p, okP := number(extension, "packets")
	b, okB := number(extension, "bytes")
	return p, b, okP && okB
}

// number is a whole number from 0 to 2^53.
func number(extension map[string]*structpb.Value, key string) (uint64, bool) {
	v, ok := extension[key].GetKind().(*structpb.Value_NumberValue)
	if !ok || !(v.NumberValue >= 0 && v.NumberValue <= 1<<53) {
		return 0, false
	}
	return uint64(v.NumberValue), true
}
