package ui

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"

	"myelin/api"
	apiv1 "myelin/api/v1"
)

// health has the state of nodes and maps. A part that could not be read has an error instead.
type health struct {
	Server      serverHealth `json:"server"`
	ServerError string       `json:"serverError,omitempty"`
	Nodes       []nodeHealth `json:"nodes"`
	NodesError  string       `json:"nodesError,omitempty"`
	// Maps, Status and MapsError are of the agent at Socket.
	Socket    string          `json:"socket"`
	Maps      json.RawMessage `json:"maps,omitempty"`
	Status    json.RawMessage `json:"status,omitempty"`
	MapsError string          `json:"mapsError,omitempty"`
}

type serverHealth struct {
	Target   string  `json:"target"`
	Version  string  `json:"version"`
	Uptime   float64 `json:"uptime"` // seconds
	Flows    uint64  `json:"flows"`
	MaxFlows uint64  `json:"maxFlows"`
	Seen     uint64  `json:"seen"`
	Rate     float64 `json:"rate"`
	Away     uint32  `json:"away"` // nodes
}

type nodeHealth struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`
	Address string  `json:"address"`
	State   string  `json:"state"`
	TLS     bool    `json:"tls"`
	Uptime  float64 `json:"uptime"` // seconds
	Seen    uint64  `json:"seen"`
	Flows   uint64  `json:"flows"`
	Max     uint64  `json:"maxFlows"`
}

// health asks the observer and the agent at once, so that one that is away does not delay the others.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	h := health{Socket: s.Socket, Nodes: []nodeHealth{}}
	h.Server.Target = s.Target
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.serverStatus(ctx, &h.Server); err != nil {
			h.ServerError = s.ObserverError(err).Error()
		}
	})
	group.Go(func() {
		nodes, err := s.Observer.GetNodes(ctx, &observerpb.GetNodesRequest{})
		if err != nil {
			h.NodesError = s.ObserverError(err).Error()
			return
		}
		for _, n := range nodes.GetNodes() {
			h.Nodes = append(h.Nodes, nodeHealth{Name: n.GetName(), Version: n.GetVersion(), Address: n.GetAddress(),
				State: n.GetState().String(), TLS: n.GetTls().GetEnabled(), Uptime: seconds(n.GetUptimeNs()),
				Seen: n.GetSeenFlows(), Flows: n.GetNumFlows(), Max: n.GetMaxFlows()})
		}
	})
	group.Go(func() {
		var err error
		if h.Maps, h.Status, err = s.agentState(ctx); err != nil {
			h.MapsError = s.AgentError(err).Error()
		}
	})
	group.Wait()
	s.answer(w, h)
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

func (s *Server) serverStatus(ctx context.Context, to *serverHealth) error {
	st, err := s.Observer.ServerStatus(ctx, &observerpb.ServerStatusRequest{})
	if err != nil {
		return err
	}
	to.Version, to.Uptime = st.GetVersion(), seconds(st.GetUptimeNs())
	to.Flows, to.MaxFlows, to.Seen = st.GetNumFlows(), st.GetMaxFlows(), st.GetSeenFlows()
	to.Rate, to.Away = st.GetFlowsRate(), st.GetNumUnavailableNodes().GetValue()
	return nil
}

// agentState is the agent's list of maps and its status report, as JSON.
func (s *Server) agentState(ctx context.Context) (maps, status json.RawMessage, err error) {
	list, err := api.List(ctx, s.Agent, &apiv1.ListRequest{Table: "maps", Json: true})
	if err != nil {
		return nil, nil, err
	}
	report, err := s.Agent.Status(ctx, &apiv1.StatusRequest{}, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, nil, err
	}
	return list.GetJson(), report.GetJson(), nil
}
