package cni

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
	"myelin/endpoint"
	"myelin/endpoint/podlink"
	"myelin/ipam"
)

// Codes of Myelin's own CNI errors; the specification leaves 100 and above to
// plugins.
const (
	codeExists    = 100 // the attachment or its interface name is there already
	codeExhausted = 101 // no pod address is left on the node
	codeDatapath  = 102 // the datapath refused the pod
	codeDiffers   = 103 // CHECK found a difference
)

// errCheck marks what Check found, so that it is not taken for a failure of
// the agent.
var errCheck = errors.New("attachment differs from what ADD made")

func checkFailure(err error) error {
	if errors.Is(err, endpoint.ErrNotFound) || errors.As(err, new(*types.Error)) {
		return err
	}
	return errors.Join(errCheck, err)
}

// refuse logs a request that failed, once, and makes the error that the plugin
// prints.
func (c *Server) refuse(command string, a endpoint.Attachment, err error) error {
	e := toCNI(err)
	c.log.Warn("CNI command failed", "command", command, "attachment", a, "code", e.Code, "error", err)
	return toStatus(codes.FailedPrecondition, e)
}

// toCNI chooses code and message by the error's kind; details are its text.
func toCNI(err error) *types.Error {
	var own *types.Error
	if errors.As(err, &own) {
		return own
	}
	for _, known := range []struct {
		is   error
		code uint
		msg  string
	}{
		{endpoint.ErrNotRestored, types.ErrTryAgainLater, "agent is starting"},
		{endpoint.ErrExists, codeExists, "attachment exists already"},
		{endpoint.ErrNotFound, types.ErrUnknownContainer, "no such attachment"},
		{endpoint.ErrState, types.ErrIOFailure, "run directory can't be written"},
		{ipam.ErrExhausted, codeExhausted, "no pod address is left on the node"},
		{podlink.ErrNetNS, types.ErrInvalidNetNS, "invalid network namespace"},
		{endpoint.ErrReconcile, codeDatapath, "datapath refused the pod"},
		{errCheck, codeDiffers, "attachment differs from what ADD made"},
		{context.DeadlineExceeded, types.ErrTryAgainLater, "operation took too long"},
		{context.Canceled, types.ErrTryAgainLater, "operation was cancelled"},
	} {
		if errors.Is(err, known.is) {
			return types.NewError(known.code, known.msg, err.Error())
		}
	}
	return types.NewError(types.ErrInternal, "operation failed", err.Error())
}

// notAvailable is the answer of STATUS; a node that is starting is asked every
// few seconds, so it is not logged.
func notAvailable(p *Problem) error {
	code := types.ErrPluginNotAvailable
	if p.Limited {
		code = types.ErrLimitedConnectivity
	}
	return toStatus(codes.FailedPrecondition, types.NewError(code, "node can't take pods", p.Reason))
}

func toStatus(code codes.Code, e *types.Error) error {
	s := status.New(code, e.Error())
	detailed, err := s.WithDetails(&apiv1.CNIError{Code: uint32(e.Code), Msg: e.Msg, Details: e.Details})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}
