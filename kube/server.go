package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ServiceAccount is where Kubernetes puts the credentials of a pod.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Options say which server to talk to, and the credentials.
type Options struct {
	// KubeConfig is a kubeconfig file, whose current context counts; empty: the
	// files of a service account.
	KubeConfig string
	// Account is the folder of the service account's files.
	Account string
	// Host and Port are where the server is, in the place of what the credentials
	// say; Port 0 is 443 in the place of a Service's, else 6443. Host may be an
	// address, a name, or an URL without path.
	Host string
	Port uint16
	// Env reads environment variables: KUBERNETES_SERVICE_HOST and _PORT.
	Env func(string) string
	// Agent is the client's name in the server's logs.
	Agent string
	// QPS is how many requests a second there may be; 0: 20, twice as many at once.
	QPS float32
	// Timeout bounds the wait for the beginning of an answer.
	Timeout time.Duration
}

// Server is an API server and the way to it.
type Server struct {
	config  *rest.Config
	contact *contact
	// byService is whether the address is that of the cluster's own Service.
	byService bool
}

// answerTimeout bounds the wait for the beginning of an answer: without it a
// server that accepts and never answers would hold everything up, unseen.
const answerTimeout = time.Minute

// NewServer reads the credentials. It does not ask the server anything. Errors
// name the key or the file that is at fault.
func NewServer(o Options) (*Server, error) {
	s := &Server{contact: newContact()}
	var err error
	if o.KubeConfig != "" {
		s.config, err = fromKubeConfig(o.KubeConfig)
	} else {
		s.config, err = fromAccount(o)
		s.byService = o.Host == ""
	}
	if err != nil {
		return nil, err
	}
	if o.Host != "" {
		if s.config.Host, err = o.host(s.config.Host); err != nil {
			return nil, err
		}
	}
	c := s.config
	c.UserAgent, c.WarningHandler = o.Agent, rest.NoWarnings{}
	// A dozen lists at the start, and then hardly anything: followers' backoff is what bounds requests.
	c.QPS = cmp.Or(o.QPS, 20)
	c.Burst = int(2 * c.QPS)
	timeout := o.Timeout
	if timeout == 0 {
		timeout = answerTimeout
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &watched{next: next, contact: s.contact, timeout: timeout}
	})
	return s, nil
}

func fromKubeConfig(file string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeConfigPath %s: %w", file, err)
	}
	return c, nil
}

// fromAccount is how pods get to the server.
func fromAccount(o Options) (*rest.Config, error) {
	token, ca := filepath.Join(o.Account, "token"), filepath.Join(o.Account, "ca.crt")
	for _, file := range []string{token, ca} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("kubeConfigPath is not set, and there is no service account: %w", err)
		}
	}
	c := &rest.Config{BearerTokenFile: token, TLSClientConfig: rest.TLSClientConfig{CAFile: ca}}
	if o.Host != "" {
		return c, nil
	}
	host, port := o.Env("KUBERNETES_SERVICE_HOST"), o.Env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("k8sServiceHost must be set: neither it nor KUBERNETES_SERVICE_HOST and " +
			"KUBERNETES_SERVICE_PORT say where the API server is")
	}
	c.Host = "https://" + net.JoinHostPort(host, port)
	return c, nil
}

// defaultPort is where API servers listen.
const defaultPort = 6443

func (o Options) host(before string) (string, error) {
	scheme, host := "https://", o.Host
	switch {
	case strings.HasPrefix(host, "https://"):
		host = strings.TrimPrefix(host, "https://")
	case strings.HasPrefix(host, "http://"), o.KubeConfig != "" && strings.HasPrefix(before, "http://"):
		scheme, host = "http://", strings.TrimPrefix(host, "http://")
	}
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "/"), "]")
	if host == "" || strings.ContainsAny(host, "/[]@ ") {
		return "", fmt.Errorf("k8sServiceHost: %q is no host", o.Host)
	}
	port := o.Port
	if port == 0 {
		port = defaultPort
	}
	return scheme + net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// address is the server's URL.
func (s *Server) address() string { return s.config.Host }

// withLogger makes client-go's log part of the agent's: what it calls an error
// is in the status already.
func withLogger(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quieter{log.Handler()}))
}

// quieter makes everything debugging.
type quieter struct{ slog.Handler }

func (q quieter) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quieter) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs)}
}

func (q quieter) WithGroup(name string) slog.Handler { return quieter{q.Handler.WithGroup(name)} }
