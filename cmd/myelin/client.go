package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/api"
	apiv1 "myelin/api/v1"
)

// socketVariable overrides the default of --socket.
const socketVariable = "MYELIN_SOCKET"

// socketFlag adds --socket and --run-dir. What is not given comes from the
// environment, or is where the agent listens by default.
func socketFlag(cmd *cobra.Command, socket *string) {
	def := api.DefaultSocket
	if env := os.Getenv(socketVariable); env != "" {
		def = env
	}
	cmd.PersistentFlags().StringVar(socket, "socket", def, "the agent's socket (also "+socketVariable+")")
	cmd.PersistentFlags().Var(runDir{socket}, "run-dir", "the agent's run directory, instead of --socket")
}

// runDir sets a socket by the directory that it is in.
type runDir struct{ socket *string }

func (runDir) String() string { return "" }
func (runDir) Type() string   { return "directory" }
func (r runDir) Set(dir string) error {
	*r.socket = filepath.Join(dir, filepath.Base(api.DefaultSocket))
	return nil
}

// dial returns a client of the agent behind socket. It does not connect yet.
func dial(socket string) (client apiv1.AgentClient, done func(), err error) {
	conn, err := api.Dial(socket)
	if err != nil {
		return nil, nil, err
	}
	return apiv1.NewAgentClient(conn), func() { conn.Close() }, nil
}

// maxAnswer bounds an answer that comes in one part, in bytes.
const maxAnswer = 64 << 20

func large() grpc.CallOption { return grpc.MaxCallRecvMsgSize(maxAnswer) }

// agentsWords begin what an agent says that is starting or stopping; what the
// client says of a connection that fails does not.
const agentsWords = "the agent "

// agentError explains a failed call to the user.
func agentError(err error, socket string) error {
	s, ok := status.FromError(err)
	switch {
	case err == nil || !ok:
		return err
	case s.Code() != codes.Unavailable || strings.HasPrefix(s.Message(), agentsWords):
		return errors.New(s.Message())
	case strings.Contains(s.Message(), "permission denied"):
		return fmt.Errorf("no agent answers at %s: permission denied, only root may ask", socket)
	case !fileExists(socket):
		return fmt.Errorf("no agent answers at %s: there is no such socket. Is `myelin agent` running, or is its "+
			"socket elsewhere (--socket)?", socket)
	}
	return fmt.Errorf("no agent answers at %s: %s", socket, s.Message())
}
