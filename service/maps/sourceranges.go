package maps

import (
	"errors"
	"fmt"

	"myelin/bpf"
	"myelin/service"
)

// rangeKeys are the rows of a Service in the map of source ranges. They are written before a frontend refers to them,
// and deleted after the last one does not: in between, clients that were allowed before or are allowed now may connect.
// The map can only be read as a whole, so its contents are remembered.
type rangeKeys map[bpf.DatapathSourceRangeKey]bool

// serviceBits is the length of the Service's number in a key.
const serviceBits = 32

// rangesOf are the rows of the source ranges of a frontend.
func rangesOf(f *service.Frontend) rangeKeys {
	out := rangeKeys{}
	for _, p := range allowedPrefixes(f.SourceRanges, f.SourceDeny) {
		key := bpf.Prefix(p)
		out[bpf.DatapathSourceRangeKey{Length: serviceBits + key.Length, Service: f.ServiceID, Addr: key.Addr}] = true
	}
	return out
}

// writeRanges makes the source ranges of a Service equal to those of a frontend that has some. Ranges that are not
// allowed any more are deleted also if others could not be written.
func (k *Kernel) writeRanges(f *service.Frontend, row *bpf.DatapathFrontend) error {
	if row.Flags&rangesFlag == 0 {
		return nil
	}
	want := rangesOf(f)
	err := k.addRanges(f.ServiceID, want)
	if failed := k.deleteRanges(f.ServiceID, want); failed != nil || err == nil {
		return errors.Join(err, failed)
	}
	if err = k.addRanges(f.ServiceID, want); err != nil { // the deletions may have made room
		return fmt.Errorf("write source ranges of %s, of which some are missing: %w", f.Service, err)
	}
	return nil
}

// addRanges writes the rows of a Service that are missing.
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

// restrict makes the kernel's row of a frontend check source ranges, if it is to, after its other changes could not be
// written. Otherwise the frontend would remain open to all clients.
func (k *Kernel) restrict(key bpf.DatapathFrontendKey, row *bpf.DatapathFrontend) error {
	var old bpf.DatapathFrontend
	had, err := bpf.Get(k.datapath.Frontends, key, &old)
	if err != nil || !had || old.Service != row.Service || row.Flags&rangesFlag&^old.Flags == 0 {
		return err
	}
	next := old
	next.Flags |= rangesFlag
	if err := putRow(k, k.datapath.Frontends, key, next); err != nil {
		return fmt.Errorf("restrict it: %w", err)
	}
	k.tally.count(&key, &old, -1)
	k.tally.count(&key, &next, 1)
	return nil
}

// deleteUnusedRanges deletes the ranges of a Service that no frontend uses.
func (k *Kernel) deleteUnusedRanges(serviceID uint32) error {
	if k.tally.restricted[serviceID] > 0 {
		return nil
	}
	return k.deleteRanges(serviceID, nil)
}

// deleteAllUnusedRanges is deleteUnusedRanges for every Service that has ranges.
func (k *Kernel) deleteAllUnusedRanges() error {
	var errs []error
	for serviceID := range k.ranges {
		errs = append(errs, k.deleteUnusedRanges(serviceID))
	}
	return errors.Join(errs...)
}

func (k *Kernel) deleteRanges(serviceID uint32, keep rangeKeys) error {
	for key := range k.ranges[serviceID] {
		if keep[key] {
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
