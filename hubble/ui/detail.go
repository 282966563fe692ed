package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	apiv1 "myelin/api/v1"
	"myelin/hubble/printer"
	"myelin/policy/explain"
)

// maxAnswer bounds an agent's answer, in bytes.
const maxAnswer = 64 << 20

// detail is all about a flow.
type detail struct {
	Flow  json.RawMessage `json:"flow"`
	Rule  string          `json:"rule,omitempty"`
	Trace *traceRequest   `json:"trace,omitempty"`
}

// traceRequest returns the question to `myelin policy trace` about a flow: always its request, not its reply.
type traceRequest struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Port    string `json:"port"`
	Command string `json:"command"`
}

// flow answers with the details of a flow of an open stream.
func (s *Server) flow(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	stream, err := strconv.ParseUint(values.Get("stream"), 10, 64)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, fmt.Errorf("stream %q: want a number", values.Get("stream")))
		return
	}
	seq, err := strconv.ParseUint(values.Get("flow"), 10, 64)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, fmt.Errorf("flow %q: want a number", values.Get("flow")))
		return
	}
	c := s.streams.get(stream)
	if c == nil {
		s.refuse(w, http.StatusNotFound, fmt.Errorf("stream %d has ended", stream))
		return
	}
	f, ok := c.find(seq)
	if !ok {
		s.refuse(w, http.StatusNotFound, fmt.Errorf("flow %d is not kept: only the last %d, and the last %d that "+
			"were denied", seq, maxKept, maxKeptDenied))
		return
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(f)
	if err != nil {
		s.refuse(w, http.StatusInternalServerError, fmt.Errorf("flow %d: %w", seq, err))
		return
	}
	s.answer(w, detail{Flow: data, Rule: rule(f), Trace: traceOf(f)})
}

// traceOf is nil for a flow that policies can't be asked about.
func traceOf(f *flowpb.Flow) *traceRequest {
	fromPort, port := printer.Ports(f)
	from, to := traceEnd(f.GetSource(), f.GetIP().GetSource()), traceEnd(f.GetDestination(),
		f.GetIP().GetDestination())
	if isReply(f, fromPort, port) {
		from, to, port = to, from, fromPort
	}
	text := ""
	switch l4 := f.GetL4(); {
	case l4.GetICMPv4() != nil:
		text = fmt.Sprintf("%d/ICMP", l4.GetICMPv4().GetType())
	case l4.GetICMPv6() != nil:
		text = fmt.Sprintf("%d/ICMPv6", l4.GetICMPv6().GetType())
	case port != 0:
		text = fmt.Sprintf("%d/%s", port, printer.Protocol(f))
	}
	if from == "" || to == "" || text == "" {
		return nil
	}
	return &traceRequest{from, to, text, fmt.Sprintf("myelin policy trace --from %s --to %s --port %s", from, to, text)}
}

func traceEnd(e *flowpb.Endpoint, address string) string {
	if e.GetPodName() != "" {
		return printer.Printable(path.Join(e.GetNamespace(), e.GetPodName()))
	}
	return address
}

// trace answers with what `myelin policy trace` prints.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	if err := unknownField(values, "from", "to", "port"); err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	req := &apiv1.TracePoliciesRequest{From: values.Get("from"), To: values.Get("to"), Port: values.Get("port")}
	if req.From == "" || req.To == "" || req.Port == "" {
		s.refuse(w, http.StatusBadRequest, errors.New("want from, to and port"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	answer, err := s.Agent.TracePolicies(ctx, req, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		s.refuse(w, http.StatusBadGateway, s.AgentError(err))
		return
	}
	var t explain.Trace
	if err := json.Unmarshal(answer.GetJson(), &t); err != nil {
		s.refuse(w, http.StatusBadGateway, fmt.Errorf("read the agent's answer: %w", err))
		return
	}
	s.answer(w, map[string]string{"verdict": cmp.Or(t.Verdict, "unknown"), "text": t.String()})
}
