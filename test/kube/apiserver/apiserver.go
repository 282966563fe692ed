// Package apiserver runs a real Kubernetes API server for tests: etcd and
// kube-apiserver, on loopback, with RBAC, and with no controllers.
package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// BinEnv is the environment variable that has the folder of etcd and
// kube-apiserver; test/kube/build.sh makes them.
const BinEnv = "MYELIN_KUBE_BIN"

// Server is an API server. It ends with its test.
type Server struct {
	t    *testing.T
	bin  string
	dir  string
	etcd string // URL
	port int
	run  map[string]*exec.Cmd
	http *http.Client
}

// Users of the server, which are their tokens too: Admin may do all, the others what
// they are granted.
const (
	Admin    = "admin"
	Agent    = "myelin-agent"
	Operator = "myelin-operator"
)

// startTimeout bounds how long a program may take to serve.
const startTimeout = 90 * time.Second

// Start runs a server, or skips the test where there are no programs for it.
func Start(t *testing.T) *Server {
	t.Helper()
	bin := os.Getenv(BinEnv)
	if bin == "" {
		t.Skipf("%s is not set: $(test/kube/build.sh) makes what it is to name", BinEnv)
	}
	s := &Server{t: t, bin: bin, dir: t.TempDir(), port: freePort(t), run: map[string]*exec.Cmd{}}
	// of this very process' child
	s.http = &http.Client{Timeout: startTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	t.Cleanup(func() {
		s.stop("kube-apiserver")
		s.stop("etcd")
		if t.Failed() {
			for _, name := range []string{"etcd", "kube-apiserver"} {
				log, _ := os.ReadFile(s.file(name + ".log"))
				t.Logf("%s: …%s", name, log[max(0, len(log)-1500):])
			}
		}
	})
	s.write("key.pem", key(t))
	s.write("audit.yaml",
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [ResponseStarted, ResponseComplete, "+
			"Panic]\nrules: [{level: Metadata, users: ["+Agent+"]}, {level: None}]"))
	s.write("tokens.csv",
		[]byte(Admin+","+Admin+",1,system:masters\n"+Agent+","+Agent+",2\n"+Operator+","+Operator+",3\n"))
	peer := freePort(t)
	s.etcd = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	s.start("etcd", "--data-dir", s.file("etcd"), "--listen-client-urls", s.etcd, "--advertise-client-urls", s.etcd,
		"--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer), "--initial-advertise-peer-urls",
		fmt.Sprintf("http://127.0.0.1:%d", peer),
		"--initial-cluster", fmt.Sprintf("default=http://127.0.0.1:%d", peer), "--unsafe-no-fsync")
	s.Resume()
	return s
}

// Resume starts the API server, again after Kill. It returns when it is ready.
func (s *Server) Resume() {
	s.t.Helper()
	s.start("kube-apiserver", "--etcd-servers", s.etcd, "--secure-port", fmt.Sprint(s.port), "--bind-address",
		"127.0.0.1", "--cert-dir", s.file("certs"),
		"--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112", "--service-account-issuer",
		"https://kubernetes.default.svc",
		"--service-account-key-file", s.file("key.pem"), "--service-account-signing-key-file", s.file("key.pem"),
		"--token-auth-file", s.file("tokens.csv"),
		"--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount", "--allow-privileged",
		"--endpoint-reconciler-type", "none",
		"--audit-policy-file", s.file("audit.yaml"), "--audit-log-path", s.file("audit.log"))
	deadline := time.Now().Add(startTimeout)
	for {
		code, body, err := s.ask(http.MethodGet, "/readyz", "", nil)
		if code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("kube-apiserver is not ready after %s: %d %s %v", startTimeout, code, body, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Kill ends the API server at once. What it stores stays.
func (s *Server) Kill() { s.stop("kube-apiserver") }

// URL is where the server is.
func (s *Server) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// Port is what it listens on.
func (s *Server) Port() int { return s.port }

// CA is the certificate that vouches for it.
func (s *Server) CA() string { return s.file("certs/apiserver.crt") }

// KubeConfig writes a kubeconfig file for one of the users.
func (s *Server) KubeConfig(user string) string {
	s.t.Helper()
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": map[string]any{"server": s.URL(),
			"certificate-authority": s.CA()}}},
		"users":    []any{map[string]any{"name": user, "user": map[string]any{"token": user}}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": user}}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.write(user+".kubeconfig", text)
}

// Apply creates or changes an object, at its path without the server, e.g.
// "/api/v1/nodes/a".
func (s *Server) Apply(path string, object []byte) {
	s.t.Helper()
	s.patch(path+"?fieldManager=test&force=true", "application/apply-patch+yaml", object)
}

// Merge changes what part, which is JSON, has of what is at a path, e.g.
// "/api/v1/nodes/a/status".
func (s *Server) Merge(path string, part []byte) {
	s.t.Helper()
	s.patch(path, "application/merge-patch+json", part)
}

func (s *Server) patch(path, kind string, object []byte) {
	s.t.Helper()
	code, body, err := s.ask(http.MethodPatch, path, kind, object)
	if err != nil || code >= 300 {
		s.t.Fatalf("patch %s: %d %s %v\n%s", path, code, body, err, object)
	}
}

// Get reads what is at a path.
func (s *Server) Get(path string) []byte {
	s.t.Helper()
	code, body, err := s.ask(http.MethodGet, path, "", nil)
	if err != nil || code >= 300 {
		s.t.Fatalf("get %s: %d %s %v", path, code, body, err)
	}
	return body
}

// Grant gives a user the rights of a role file: of a ClusterRole, and of Roles, whose namespaces it creates.
func (s *Server) Grant(user, file string) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, doc := range bytes.Split(text, []byte("\n---\n")) {
		var role struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal(doc, &role); err != nil {
			s.t.Fatal(err)
		}
		at, plural := "/apis/rbac.authorization.k8s.io/v1/", "clusterrole"
		if role.Kind == "Role" {
			namespace := cmp.Or(role.Metadata.Namespace, "kube-system")
			s.Apply("/api/v1/namespaces/"+namespace, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+
				namespace+"}"))
			at, plural = at+"namespaces/"+namespace+"/", "role"
		}
		s.Apply(at+plural+"s/"+role.Metadata.Name, doc)
		binding := fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: %sBinding\nmetadata: {name: "+
			"test-%s-%d}\n"+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: %[4]s}\nsubjects: [{kind: User, name: "+
			"%[2]s, apiGroup: rbac.authorization.k8s.io}]",
			role.Kind, user, i, role.Metadata.Name)
		s.Apply(fmt.Sprintf("%s%sbindings/test-%s-%d", at, plural, user, i), []byte(binding))
	}
}

// Delete deletes an object at once. Of a Namespace it does what its controller
// would.
func (s *Server) Delete(path string) {
	s.t.Helper()
	code, body, err := s.ask(http.MethodDelete, path+"?gracePeriodSeconds=0", "", nil)
	if err != nil || code >= 300 {
		s.t.Fatalf("delete %s: %d %s %v", path, code, body, err)
	}
	name, ok := strings.CutPrefix(path, "/api/v1/namespaces/")
	if !ok || strings.Contains(name, "/") {
		return
	}
	done, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"finalizers": []string{}}})
	if code, body, err := s.ask(http.MethodPut, path+"/finalize", "application/json", done); err != nil || code >= 300 {
		s.t.Fatalf("finalize %s: %d %s %v", path, code, body, err)
	}
}

// Try is a request as admin of which anything may come: the server's status code
// and what it says.
func (s *Server) Try(method, path, kind string, data []byte) (code int, body []byte) {
	s.t.Helper()
	code, body, err := s.ask(method, path, kind, data)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return code, body
}

func (s *Server) ask(method, path, kind string, data []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL()+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+Admin)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) write(name string, text []byte) string {
	s.t.Helper()
	if err := os.WriteFile(s.file(name), text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.file(name)
}

func (s *Server) start(name string, args ...string) {
	s.t.Helper()
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.run[name] = cmd
}

func (s *Server) stop(name string) {
	if cmd := s.run[name]; cmd != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		delete(s.run, name)
	}
}

func key(t *testing.T) []byte {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	return addr.Port
}
