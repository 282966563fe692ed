package query

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/hubble/eventtype"
)

func types() map[string]int32 {
	return map[string]int32{"drop": eventtype.Drop, "capture": eventtype.Capture, "trace": eventtype.Trace,
		"policy-verdict": eventtype.PolicyVerdict, "trace-sock": eventtype.Sock, "l7": eventtype.AccessLog}
}

func typeNames() []string { return slices.Sorted(maps.Keys(types())) }

func typeWords() []string {
	words := typeNames()
	for _, point := range eventtype.TracePoints() {
		words = append(words, "trace:"+point)
	}
	return words
}

func eventType(value string) (*flowpb.EventTypeFilter, error) {
	name, sub, subtyped := strings.Cut(value, ":")
	number, ok := types()[name]
	if !ok {
		n, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return nil, fmt.Errorf("want %s, or a number", strings.Join(typeNames(), ", "))
		}
		number = int32(n)
	}
	f := &flowpb.EventTypeFilter{Type: number}
	if !subtyped {
		return f, nil
	}
	f.MatchSubType = true
	if i := slices.Index(eventtype.TracePoints(), sub); i >= 0 && number == eventtype.Trace {
		f.SubType = int32(i)
		return f, nil
	}
	n, err := strconv.ParseUint(sub, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("subtype %q: want a number, or of trace one of %s", sub,
			strings.Join(eventtype.TracePoints(), ", "))
	}
	f.SubType = int32(n)
	return f, nil
}

// Range is which part of the flows is asked for.
type Range struct {
	First, Last  uint64 // 0: not given
	All, Follow  bool
	Since, Until string // as Time reads them; empty: not given
}

// defaultLast is how many flows are shown if nothing says how many.
const defaultLast = 20

// Request makes a request of a range and filters. Errors name the flags.
func (r Range) Request(f *Filters, now time.Time) (*observerpb.GetFlowsRequest, error) {
	for _, c := range []struct {
		both  bool
		flags string
	}{{r.First > 0 && r.Last > 0, "--first and --last"}, {r.First > 0 && r.All, "--first and --all"},
		{r.First > 0 && r.Follow, "--first and --follow"}, {r.Last > 0 && r.All, "--last and --all"},
		{r.Until != "" && r.Follow, "--until and --follow"}} {
		if c.both {
			return nil, errors.New(c.flags + " exclude each other")
		}
	}
	req := &observerpb.GetFlowsRequest{Follow: r.Follow, First: r.First > 0, Number: max(r.First, r.Last)}
	for _, t := range []struct {
		flag, value string
		to          **timestamppb.Timestamp
	}{{"since", r.Since, &req.Since}, {"until", r.Until, &req.Until}} {
		if t.value == "" {
			continue
		}
		at, err := parseTime(t.value, now)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", t.flag, t.value, err)
		}
		*t.to = timestamppb.New(at)
	}
	if req.Since == nil && req.Until == nil && req.Number == 0 {
		switch {
		case r.All:
			req.Number = ^uint64(0)
		case !r.Follow:
			req.Number = defaultLast
		}
	}
	var err error
	req.Whitelist, req.Blacklist, err = f.Lists()
	return req, err
}

// Names of time formats, and their layouts.
const (
	hourLayout   = "2006-01-02T15Z07:00"
	minuteLayout = "2006-01-02T15:04Z07:00"
	milliLayout  = "2006-01-02T15:04:05.999Z07:00"
	microLayout  = "2006-01-02T15:04:05.999999Z07:00"
)

// TimeFormats are the names of formats that times are printed in.
func TimeFormats() []string {
	return []string{"StampMilli", "YearMonthDay", "YearMonthDayHour", "YearMonthDayHourMinute", "RFC3339",
		"RFC3339Milli", "RFC3339Micro", "RFC3339Nano", "RFC1123Z"}
}

// Layout is the layout of a format, as package time has them. Case does not matter.
func Layout(name string) (string, error) {
	layouts := []string{time.StampMilli, time.DateOnly, hourLayout, minuteLayout, time.RFC3339, milliLayout,
		microLayout, time.RFC3339Nano, time.RFC1123Z}
	for i, format := range TimeFormats() {
		if strings.EqualFold(name, format) {
			return layouts[i], nil
		}
	}
	return "", fmt.Errorf("want %s", strings.Join(TimeFormats(), ", "))
}

// parseTime reads a time: how long before now, or a date, or a time with its zone in a format of TimeFormats.
func parseTime(value string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(value); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, hourLayout, minuteLayout, time.RFC3339Nano, time.RFC1123Z} {
		if t, err := time.Parse(layout, value); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("want how long ago, as 3s or 1h30m, or a time, as 2006-01-02T15:04:05Z")
}
