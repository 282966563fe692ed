package connectivity

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

// server is an API server, asked in JSON: all kinds by the same few lines.
type server struct {
	config *rest.Config
	http   *http.Client
	base   *url.URL
}

// connect reads a kubeconfig: file, or what kubectl would take. It asks nothing yet.
func connect(file, context string) (*server, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (a lab of `myelin lab` has no API server, and can't be tested so)", err)
	}
	config.UserAgent, config.WarningHandler = "myelin-connectivity", rest.NoWarnings{}
	config.GroupVersion = &metav1.Unversioned
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	s := &server{config: config, base: base}
	if s.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	return s, nil
}

// do makes a request: in is sent as JSON if it is not nil, out is filled if it is
// not nil. Errors of the server are those of apierrors.
func (s *server) do(ctx context.Context, method, path string, in, out any) error {
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
	res, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		status := metav1.Status{}
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status = metav1.Status{Code: int32(res.StatusCode), Message: fmt.Sprintf("%s %s: %s", method, path, res.Status)}
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func (s *server) get(ctx context.Context, path string, out any) error {
	return s.do(ctx, http.MethodGet, path, nil, out)
}

// remove deletes an object; one that is not there is no error.
func (s *server) remove(ctx context.Context, path string) error {
	err := s.do(ctx, http.MethodDelete, path, &metav1.DeleteOptions{}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// exec runs a command in a pod's first container. It goes by the kubelet, and not by
// the network that is tested.
func (s *server) exec(ctx context.Context, namespace, pod string, command ...string) (stdout string, err error) {
	at := *s.base
	at.Path += fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec", namespace, pod)
	at.RawQuery = url.Values{"command": command, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	e, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, at.String())
	if err != nil {
		return "", fmt.Errorf("exec in %s/%s: %w", namespace, pod, err)
	}
	// What client-go would log is in the error.
	ctx = klog.NewContext(ctx, logr.Discard())
	var out, errs bytes.Buffer
	if err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil {
		return out.String(), fmt.Errorf("exec in %s/%s: %w", namespace, pod, errors.Join(err, said(&errs)))
	}
	return out.String(), nil
}

// said is what a command wrote as an error.
func said(b *bytes.Buffer) error {
	if text := strings.TrimSpace(b.String()); text != "" {
		return errors.New(text)
	}
	return nil
}
