package flow

import (
	"testing"
	"time"

	"myelin/bpf"
)

func TestLifetime(t *testing.T) {
	row := func(flags bpf.DatapathFlowFlag) *Row { return &Row{Flags: uint8(flags)} }
	established := func(flags bpf.DatapathFlowFlag) *Row {
		r := row(flags)
		r.Side[0].TcpFlags = ACK // of the side that began
		return r
	}
	reset := func(flags bpf.DatapathFlowFlag) *Row {
		r := row(flags)
		r.Side[1].TcpFlags = RST
		return r
	}
	replied, closing, nat := bpf.DatapathFlowFlagFLOW_REPLIED, bpf.DatapathFlowFlagFLOW_CLOSING,
		bpf.DatapathFlowFlagFLOW_NAT
	for _, c := range []struct {
		row      *Row
		protocol uint8
		state    State
		want     bpf.DatapathFlowSeconds
	}{
		{row(0), 6, Unreplied, bpf.DatapathFlowSecondsFLOW_SYN_SECONDS},
		{row(replied), 6, Replied, bpf.DatapathFlowSecondsFLOW_SYN_SECONDS},
		{established(replied), 6, Replied, bpf.DatapathFlowSecondsFLOW_TCP_SECONDS},
		{row(replied | closing), 6, Closing, bpf.DatapathFlowSecondsFLOW_CLOSING_SECONDS},
		{row(closing | nat), 6, Closing, bpf.DatapathFlowSecondsFLOW_TIME_WAIT_SECONDS},
		{row(closing | nat | bpf.DatapathFlowFlagFLOW_POD_FIN), 6, Closing,
			bpf.DatapathFlowSecondsFLOW_CLOSING_SECONDS},
		{reset(closing | nat), 6, Closing, bpf.DatapathFlowSecondsFLOW_CLOSING_SECONDS},
		{row(replied), 17, Replied, bpf.DatapathFlowSecondsFLOW_OTHER_SECONDS},
	} {
		life := time.Duration(c.want) * time.Second
		if stateOf(c.row) != c.state || lifetime(c.row, c.protocol) != life {
			t.Errorf("protocol %d, %s: %s", c.protocol, stateOf(c.row), lifetime(c.row, c.protocol))
		}
		k := &Key{Proto: c.protocol}
		for now, expired := range map[uint32]bool{uint32(c.want) * 10: false, uint32(c.want)*10 + 1: true} {
			c.row.Seen = 1<<32 - 7 // the clock wraps
			if got := (Clock{Ticks: 1<<32 + uint64(now) - 7, Hz: 10}).Expired(k, c.row); got != expired {
				t.Errorf("protocol %d, %s: expired %v after %d ticks of 0.1 s", c.protocol, c.state, got, now)
			}
		}
	}
	if idle := (Clock{Ticks: 5, Hz: 10}).Idle(6); idle != 0 {
		t.Errorf("idle %s since a tick to come", idle)
	}
}
