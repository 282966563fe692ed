package maps

import (
	"errors"
	"fmt"

	"myelin/bpf"
	"myelin/service"
)

// rangeKeys are the rows of a Service in the map of source ranges. They are
// there before a frontend asks for them, and stay until after the last one: in
// between, who was allowed before or is now may come. What the kernel has can
// only be read as a whole, so it is remembered.
type rangeKeys map[bpf.DatapathSourceRangeKey]bool

// serviceBits is the part of a key's length that is the Service's number.
const serviceBits = 32

// rangesOf are the rows that say who may come to a frontend.
func rangesOf(f *service.Frontend) rangeKeys {
	out := rangeKeys{}
	for _, p := range allowedPrefixes(f.SourceRanges, f.SourceDeny) {
		key := bpf.Prefix(p)
		out[bpf.DatapathSourceRangeKey{Length: serviceBits + key.Length, Service: f.ServiceID, Addr: key.Addr}] = true
	}
	return out
}

// writeRanges writes who may come, if the frontend's row asks, and deletes who may
// no more, also where the former fails: who is not written may not come.
func (k *Kernel) writeRanges(f *service.Frontend, row *bpf.DatapathFrontend) error {
	if row.Flags&rangesFlag == 0 {
		return nil
	}
	want := rangesOf(f)
	err := k.addRanges(f.ServiceID, want)
	if failed := k.deleteRanges(f.ServiceID, want); failed != nil || err == nil {
		return errors.Join(err, failed)
	}
	if err = k.addRanges(f.ServiceID, want); err != nil { // there may be room now
		return fmt.Errorf("write source ranges of %s, from which not all may come: %w", f.Service, err)
	}
	return nil
}

// addRanges writes the rows of a Service that are not there.
func (k *Kernel) addRanges(serviceID uint32, want rangeKeys) error {
	for key := range want {
		if k.ranges[serviceID][key] {
			continue
		}
		if err := putRow(k, k.datapath.SourceRanges, key, uint32(1)); err != nil {
			return err
		}
		if k.ranges[serviceID] == nil {
			k.ranges[serviceID] = rangeKeys{}
		}
		k.ranges[serviceID][key] = true
	}
	return nil
}

// shut makes a frontend that is in the kernel ask who comes, if it is to, where
// all else that it is to be couldn't be written: it must not stay open.
func (k *Kernel) restrict(key bpf.DatapathFrontendKey, row *bpf.DatapathFrontend) error {
	var old bpf.DatapathFrontend
	had, err := bpf.Get(k.datapath.Frontends, key, &old)
	if err != nil || !had || old.Service != row.Service || row.Flags&rangesFlag&^old.Flags == 0 {
		return err
	}
	next := old
	next.Flags |= rangesFlag
	if err := putRow(k, k.datapath.Frontends, key, next); err != nil {
		return fmt.Errorf("shut it: %w", err)
	}
	k.tally.count(&key, &old, -1)
	k.tally.count(&key, &next, 1)
	return nil
}

// deleteUnusedRanges deletes the ranges of a Service that no frontend asks for.
func (k *Kernel) deleteUnusedRanges(serviceID uint32) error {
	if k.tally.restricted[serviceID] > 0 {
		return nil
	}
	return k.deleteRanges(serviceID, nil)
}

// deleteAllUnusedRanges is deleteUnusedRanges for every Service that has some.
func (k *Kernel) deleteAllUnusedRanges() error {
	var errs []error
	for serviceID := range k.ranges {
		errs = append(errs, k.deleteUnusedRanges(serviceID))
	}
	return errors.Join(errs...)
}

func (k *Kernel) deleteRanges(serviceID uint32, but rangeKeys) error {
	for key := range k.ranges[serviceID] {
		if but[key] {
			continue
		}
		if err := deleteRow(k, k.datapath.SourceRanges, key); err != nil {
			return fmt.Errorf("delete source ranges of service %d: %w", serviceID, err)
		}
		delete(k.ranges[serviceID], key)
	}
	if len(k.ranges[serviceID]) == 0 {
		delete(k.ranges, serviceID)
	}
	return nil
}

func (k *Kernel) readRanges() (map[uint32]rangeKeys, error) {
	out := map[uint32]rangeKeys{}
	err := bpf.Each(k.datapath.SourceRanges, func(key *bpf.DatapathSourceRangeKey, _ *uint32) bool {
		if out[key.Service] == nil {
			out[key.Service] = rangeKeys{}
		}
		out[key.Service][*key] = true
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read source ranges: %w", err)
	}
	return out, nil
}
