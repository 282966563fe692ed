package service

import (
	"errors"
	"fmt"

	"myelin/bpf"
)

// rangeKeys are the rows of a Service in the map of source ranges. They are
// there before a frontend asks for them, and stay until after the last one: in
// between, who was allowed before or is now may come. What the kernel has can
// only be read as a whole, so it is remembered.
type rangeKeys map[bpf.DatapathSourceRangeKey]bool

// serviceBits is the part of a key's length that is the Service's number.
const serviceBits = 32

// rangesOf are the rows that say who may come to a frontend.
func rangesOf(f *Frontend) rangeKeys {
	out := rangeKeys{}
	for _, p := range allowed(f.SourceRanges, f.SourceDeny) {
		key := bpf.Prefix(p)
		out[bpf.DatapathSourceRangeKey{Length: serviceBits + key.Length, Service: f.ServiceID, Addr: key.Addr}] = true
	}
	return out
}

// openRanges writes who may come, if the frontend's row asks, and deletes who may
// no more, also where the former fails: who is not written may not come.
func (k *Kernel) openRanges(f *Frontend, row *bpf.DatapathFrontend) error {
	if row.Flags&rangesFlag == 0 {
		return nil
	}
	want := rangesOf(f)
	err := k.putRanges(f.ServiceID, want)
	if failed := k.dropRanges(f.ServiceID, want); failed != nil || err == nil {
		return errors.Join(err, failed)
	}
	if err = k.putRanges(f.ServiceID, want); err != nil { // there may be room now
		return fmt.Errorf("write source ranges of %s, from which not all may come: %w", f.Service, err)
	}
	return nil
}

// putRanges writes the rows of a Service that are not there.
func (k *Kernel) putRanges(service uint32, want rangeKeys) error {
	for key := range want {
		if k.ranges[service][key] {
			continue
		}
		if err := put(k, k.datapath.SourceRanges, key, uint32(1)); err != nil {
			return err
		}
		if k.ranges[service] == nil {
			k.ranges[service] = rangeKeys{}
		}
		k.ranges[service][key] = true
	}
	return nil
}

// shut makes a frontend that is in the kernel ask who comes, if it is to, where
// all else that it is to be couldn't be written: it must not stay open.
func (k *Kernel) shut(key bpf.DatapathFrontendKey, row *bpf.DatapathFrontend) error {
	var old bpf.DatapathFrontend
	had, err := bpf.Get(k.datapath.Frontends, key, &old)
	if err != nil || !had || old.Service != row.Service || row.Flags&rangesFlag&^old.Flags == 0 {
		return err
	}
	next := old
	next.Flags |= rangesFlag
	if err := put(k, k.datapath.Frontends, key, next); err != nil {
		return fmt.Errorf("shut it: %w", err)
	}
	k.tally.count(&key, &old, -1)
	k.tally.count(&key, &next, 1)
	return nil
}

// settleRanges deletes the ranges of a Service that no frontend asks for.
func (k *Kernel) settleRanges(service uint32) error {
	if k.tally.restricted[service] > 0 {
		return nil
	}
	return k.dropRanges(service, nil)
}

// settleAllRanges is settleRanges for every Service that has some.
func (k *Kernel) settleAllRanges() error {
	var errs []error
	for service := range k.ranges {
		errs = append(errs, k.settleRanges(service))
	}
	return errors.Join(errs...)
}

func (k *Kernel) dropRanges(service uint32, but rangeKeys) error {
	for key := range k.ranges[service] {
		if but[key] {
			continue
		}
		if err := drop(k, k.datapath.SourceRanges, key); err != nil {
			return fmt.Errorf("delete source ranges of service %d: %w", service, err)
		}
		delete(k.ranges[service], key)
	}
	if len(k.ranges[service]) == 0 {
		delete(k.ranges, service)
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
