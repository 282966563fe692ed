// Package plugin is what the binary myelin-cni does: it reads what the
// container runtime hands over, asks the node's agent, and prints the result.
// It imports neither tables nor netlink configuration, because every pod pays
// for the time that the binary takes to start.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/cni/spool"
)

// timeout bounds one command. Runtimes have longer ones of their own (CRI: two
// minutes and more), so that it is the plugin that says what it waits for.
const timeout = 60 * time.Second

// Funcs returns the plugin's commands.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: add, Del: del, Check: check, Status: statusCommand, GC: gc}
}

// Versions returns the versions of the CNI specification that it speaks.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// agent is one call's connection.
type agent struct {
	apiv1.CNIClient
	conf  *netConf
	ctx   context.Context
	close func()
}

func connect(args *skel.CmdArgs) (*agent, error) {
	conf, bad := parseNetConf(args.StdinData)
	if bad != nil {
		return nil, bad
	}
	conn, err := api.Dial(conf.AgentSocket)
	if err != nil {
		return nil, types.NewError(types.ErrInternal, "agent's socket can't be used", err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	return &agent{
		CNIClient: apiv1.NewCNIClient(conn), conf: conf, ctx: ctx,
		close: func() { cancel(); conn.Close() },
	}, nil
}

func attachment(args *skel.CmdArgs) *apiv1.CNIAttachment {
	return &apiv1.CNIAttachment{ContainerId: args.ContainerID, IfName: args.IfName}
}

func add(args *skel.CmdArgs) error {
	a, err := connect(args)
	if err != nil {
		return err
	}
	defer a.close()
	pod, bad := parseArgs(args.Args)
	if bad != nil {
		return bad
	}
	if a.conf.RawPrevResult != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "myelin-cni must be the first plugin of the list",
			"prevResult: another plugin has made an interface already")
	}
	response, err := a.Add(a.ctx, &apiv1.CNIAddRequest{
		Attachment: attachment(args), Netns: args.Netns,
		Pod: &apiv1.CNIPod{
			Namespace: string(pod.K8S_POD_NAMESPACE), Name: string(pod.K8S_POD_NAME), Uid: string(pod.K8S_POD_UID),
		},
	})
	if err != nil {
		return a.failure(err, types.ErrTryAgainLater)
	}
	result, err := toResult(response.GetResult())
	if err != nil {
		return types.NewError(types.ErrInternal, "agent's answer can't be read", err.Error())
	}
	return types.PrintResult(result, a.conf.CNIVersion)
}

// del spools what no agent is there to do. A call that broke off is spooled
// too: the agent may have died before it was through, and a second DEL does no
// harm.
func del(args *skel.CmdArgs) error {
	a, err := connect(args)
	if err != nil {
		return err
	}
	defer a.close()
	request := &apiv1.CNIDelRequest{Attachment: attachment(args)}
	if _, err = a.Del(a.ctx, request); err == nil {
		return nil
	}
	if !down(err) {
		return a.failure(err, types.ErrTryAgainLater)
	}
	queue := spool.Of(a.conf.runDir())
	unlock, err := queue.Lock(a.ctx)
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, "agent does not run and DEL can't be queued", err.Error())
	}
	defer unlock()
	// A connection of its own: the first one is in backoff.
	again, err := connect(args)
	if err != nil {
		return err
	}
	defer again.close()
	if _, err = again.Del(again.ctx, request); err == nil {
		return nil
	}
	if !down(err) {
		return again.failure(err, types.ErrTryAgainLater)
	}
	if err := queue.Put(spool.Entry{ContainerID: args.ContainerID, IfName: args.IfName}); err != nil {
		return types.NewError(types.ErrIOFailure, "agent does not run and DEL can't be queued", err.Error())
	}
	return nil
}

func check(args *skel.CmdArgs) error {
	a, err := connect(args)
	if err != nil {
		return err
	}
	defer a.close()
	previous, bad := a.conf.previous()
	if bad != nil {
		return bad
	}
	if previous == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs the result of ADD", "prevResult: is missing")
	}
	_, err = a.Check(a.ctx, &apiv1.CNICheckRequest{
		Attachment: attachment(args), Netns: args.Netns, Previous: fromResult(previous),
	})
	if err != nil {
		return a.failure(err, types.ErrTryAgainLater)
	}
	return nil
}

func statusCommand(args *skel.CmdArgs) error {
	a, err := connect(args)
	if err != nil {
		return err
	}
	defer a.close()
	if _, err := a.Status(a.ctx, &apiv1.CNIStatusRequest{}); err != nil {
		// The datapath goes on without the agent, so pods that run are not limited.
		return a.failure(err, types.ErrPluginNotAvailable)
	}
	return nil
}

func gc(args *skel.CmdArgs) error {
	a, err := connect(args)
	if err != nil {
		return err
	}
	defer a.close()
	request := &apiv1.CNIGCRequest{}
	for _, v := range a.conf.ValidAttachments {
		request.Valid = append(request.Valid, &apiv1.CNIAttachment{ContainerId: v.ContainerID, IfName: v.IfName})
	}
	if _, err := a.GC(a.ctx, request); err != nil {
		return a.failure(err, types.ErrTryAgainLater)
	}
	return nil
}

// down reports whether the agent did not answer, or not completely.
func down(err error) bool { return status.Code(err) == codes.Unavailable }

// failure is the CNI error of a failed call: the agent's own, or absent if the
// agent could not be asked.
func (a *agent) failure(err error, absent uint) error {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if e, ok := detail.(*apiv1.CNIError); ok {
			return types.NewError(uint(e.GetCode()), e.GetMsg(), e.GetDetails())
		}
	}
	where := fmt.Sprintf("%s: %s", a.conf.AgentSocket, s.Message())
	switch {
	case down(err):
		return types.NewError(absent, "the node's agent does not run", where)
	case s.Code() == codes.DeadlineExceeded || errors.Is(a.ctx.Err(), context.DeadlineExceeded):
		return types.NewError(absent, fmt.Sprintf("the node's agent did not answer within %v", timeout), where)
	default:
		return types.NewError(types.ErrInternal, "the node's agent failed", where)
	}
}
