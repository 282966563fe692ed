// Package apiserver asks an API server in JSON, as a user does by a kubeconfig: all kinds by the same few lines.
package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
)

// Server is an API server.
type Server struct {
	config *rest.Config
	http   *http.Client
	base   *url.URL
}

// Connect reads a kubeconfig: file, or what kubectl would take. It asks nothing yet. agent is what requests call
// themselves by.
func Connect(file, context, agent string) (*Server, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (a lab of `myelin lab` has no API server)", err)
	}
	config.UserAgent, config.WarningHandler = agent, rest.NoWarnings{}
	config.GroupVersion = &metav1.Unversioned
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	s := &Server{config: config, base: base}
	if s.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	return s, nil
}

// Do makes a request: in is sent as JSON if it is not nil, out is filled if it is
// not nil. Errors of the server are those of apierrors.
func (s *Server) Do(ctx context.Context, method, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base.String()+path, &body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	text, err := s.answer(req)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 20

func (s *Server) answer(req *http.Request) ([]byte, error) {
	res, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		status := metav1.Status{}
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status = metav1.Status{
				Code: int32(res.StatusCode), Message: fmt.Sprintf("%s %s: %s", req.Method, req.URL.Path, res.Status),
			}
		}
		return nil, &apierrors.StatusError{ErrStatus: status}
	}
	return text, nil
}

// Text reads what is no object, such as a pod's log.
func (s *Server) Text(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base.String()+path, nil)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return s.answer(req)
}

// Get reads an object, or a list.
func (s *Server) Get(ctx context.Context, path string, out any) error {
	return s.Do(ctx, http.MethodGet, path, nil, out)
}

// Remove deletes an object; one that is not there is no error.
func (s *Server) Remove(ctx context.Context, path string) error {
	err := s.Do(ctx, http.MethodDelete, path, &metav1.DeleteOptions{}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Exec runs a command in a pod's first container. It goes by the kubelet, and not by
// the network that is tested.
func (s *Server) Exec(ctx context.Context, namespace, pod string, command ...string) (stdout string, err error) {
	var out bytes.Buffer
	err = s.ExecIn(ctx, namespace, pod, nil, &out, command...)
	return out.String(), err
}

// ExecIn is Exec of a command that reads stdin, unless that is nil, and whose output is written as it comes.
func (s *Server) ExecIn(ctx context.Context, namespace, pod string, stdin io.Reader, stdout io.Writer,
	command ...string,
) error {
	at := *s.base
	at.Path += fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec", namespace, pod)
	query := url.Values{"command": command, "stdout": {"true"}, "stderr": {"true"}}
	if stdin != nil {
		query.Set("stdin", "true")
	}
	at.RawQuery = query.Encode()
	e, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, at.String())
	if err != nil {
		return fmt.Errorf("exec in %s/%s: %w", namespace, pod, err)
	}
	// What client-go would log is in the error.
	ctx = klog.NewContext(ctx, logr.Discard())
	var errs bytes.Buffer
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: &errs})
	if err != nil {
		return fmt.Errorf("exec in %s/%s: %w", namespace, pod, errors.Join(err, said(&errs)))
	}
	return nil
}

// said is what a command wrote as an error.
func said(b *bytes.Buffer) error {
	if text := strings.TrimSpace(b.String()); text != "" {
		return errors.New(text)
	}
	return nil
}
