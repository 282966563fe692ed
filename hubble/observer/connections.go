package observer

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"myelin/endpoint"
	"myelin/event"
	"myelin/hubble"
	"myelin/service/sockdiag"
)

// connections reports what TCP connections of this node's pods carry; nil where each packet is a flow, or none is.
func (h *Observer) connections(ring *hubble.Ring) *hubble.Connections {
	if !h.Config.Events.Trace || h.Config.Events.Aggregation == "none" {
		return nil
	}
	return &hubble.Connections{
		Log: h.Log, Capacity: ring.Capacity, Interval: h.Config.Events.Interval, Pods: h.connectionPods,
		Insert: h.state.Hub.Insert, List: listConnections, Now: event.Monotonic,
	}
}

func (h *Observer) connectionPods() (list []hubble.ConnectionPod) {
	for e := range h.state.Endpoints.All(h.DB.ReadTxn()) {
		if e.State == endpoint.StateReady {
			list = append(list, hubble.ConnectionPod{Slot: e.ID, Namespace: e.NetNS, IPv4: e.IPv4, IPv6: e.IPv6})
		}
	}
	return list
}

// listConnections returns none for a namespace that is gone.
func listConnections(path string) ([]sockdiag.Connection, error) {
	n, err := sockdiag.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return n.Connections()
}

// reportConnections reports while clients follow. Others that read flows have reports made, too.
func (h *Observer) reportConnections(ctx context.Context) error {
	wait := h.observer.Connections.Report()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if wait = time.Second; h.state.Hub.Following() {
			wait = h.observer.Connections.Report()
		}
	}
}
