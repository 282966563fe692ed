package tlsfile_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"myelin/internal/tlsfile"
	"myelin/operator/pki"
)

// folder has files as those of a Secret: replaced by renaming.
type folder struct {
	*testing.T

	dir string
}

func (f folder) write(name string, data []byte) string {
	f.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		f.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.Fatal(err)
	}
	return path
}

// issue writes a certificate of a CA.
func (f folder) issue(ca *pki.Authority, name string) (cert, key string) {
	f.Helper()
	p, err := ca.Issue(pki.Request{CommonName: name, Names: []string{name}, Server: true, Client: true,
		Validity: time.Hour}, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	return f.write(name+".crt", p.Cert), f.write(name+".key", p.Key)
}

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority("CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serve is a gRPC server; its address.
func serve(t *testing.T, s *tlsfile.Source) string {
	t.Helper()
	l := listen(t)
	server := grpc.NewServer(grpc.Creds(s.ServerCredentials()))
	healthpb.RegisterHealthServer(server, health.NewServer())
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// ask calls a server on a new connection.
func ask(t *testing.T, address string, s *tlsfile.Source, name string) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(s.ClientCredentials(name)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestMutual(t *testing.T) {
	f := folder{t, t.TempDir()}
	ours, theirs := authority(t), authority(t)
	ca, other := f.write("ca.crt", ours.Cert), f.write("other.crt", theirs.Cert)
	cert, key := f.issue(ours, "server.example.org")
	clientCert, clientKey := f.issue(ours, "client.example.org")
	foreignCert, foreignKey := f.issue(theirs, "foreign.example.org")
	address := serve(t, tlsfile.New(tlsfile.Files{Cert: cert, Key: key, CAs: []string{ca}}))
	for what, tc := range map[string]struct {
		files tlsfile.Files
		name  string
		want  string
	}{
		"good": {tlsfile.Files{Cert: clientCert, Key: clientKey, CAs: []string{other, ca}}, "server.example.org", ""},
		"another name": {tlsfile.Files{Cert: clientCert, Key: clientKey, CAs: []string{ca}}, "x.example.org",
			"not x.example.org"},
		"no certificate": {tlsfile.Files{CAs: []string{ca}}, "server.example.org", "Unavailable"},
		"a certificate of others": {tlsfile.Files{Cert: foreignCert, Key: foreignKey, CAs: []string{ca}},
			"server.example.org", "Unavailable"},
		"another CA": {tlsfile.Files{Cert: clientCert, Key: clientKey, CAs: []string{other}}, "server.example.org",
			"unknown authority"},
		"the system's CAs": {tlsfile.Files{Cert: clientCert, Key: clientKey}, "server.example.org",
			"unknown authority"},
		"a key alone": {tlsfile.Files{Key: clientKey}, "server.example.org", "given together"},
	} {
		err := ask(t, address, tlsfile.New(tc.files), tc.name)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
}

// TestReplaced: certificates and CAs are exchanged under a server and a client that keep running; files that cannot be
// used meanwhile do no harm.
func TestReplaced(t *testing.T) {
	f := folder{t, t.TempDir()}
	first, second := authority(t), authority(t)
	ca := f.write("ca.crt", first.Cert)
	cert, key := f.issue(first, "server")
	clientCert, clientKey := f.issue(first, "client")
	address := serve(t, tlsfile.New(tlsfile.Files{Cert: cert, Key: key, CAs: []string{ca}}))
	client := tlsfile.New(tlsfile.Files{Cert: clientCert, Key: clientKey, CAs: []string{ca}})
	works := func(what string) {
		t.Helper()
		if err := ask(t, address, client, "server"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	works("at first")
	f.write("ca.crt", append(append([]byte{}, first.Cert...), second.Cert...))
	works("with both CAs")
	f.issue(second, "server")
	works("a server of the new CA")
	f.issue(second, "client")
	f.write("ca.crt", second.Cert)
	works("the new CA alone")
	if err := ask(t, address, tlsfile.New(tlsfile.Files{CAs: []string{ca}}), "server"); err == nil {
		t.Error("a client without a certificate is served")
	}
	f.write("server.key", []byte("half a "))
	works("a key that is being written")
	os.Remove(cert)
	works("a certificate that is gone")
	f.write("ca.crt", nil)
	works("no CA")
	f.write("ca.crt", first.Cert)
	f.issue(first, "server")
	f.issue(first, "client")
	works("all as before")
}

func TestCheck(t *testing.T) {
	f := folder{t, t.TempDir()}
	ca := authority(t)
	cert, key := f.issue(ca, "server")
	_, otherKey := f.issue(ca, "other")
	none, junk := filepath.Join(f.dir, "none"), f.write("junk", []byte("junk"))
	for _, tc := range []struct {
		files tlsfile.Files
		want  string
	}{
		{tlsfile.Files{}, ""},
		{tlsfile.Files{Cert: cert, Key: key}, ""},
		{tlsfile.Files{Cert: cert}, "given together"},
		{tlsfile.Files{Cert: none, Key: key}, none},
		{tlsfile.Files{Cert: cert, Key: otherKey}, otherKey},
		{tlsfile.Files{CAs: []string{cert, none}}, none},
		{tlsfile.Files{CAs: []string{cert, junk}}, junk + ": it has no certificate"},
	} {
		err := tlsfile.New(tc.files).Check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v, want %q", tc.files, err, tc.want)
		}
	}
}

// TestServer: for HTTP too, and by TLS 1.3 only.
func TestServer(t *testing.T) {
	f := folder{t, t.TempDir()}
	ca := authority(t)
	cert, key := f.issue(ca, "example.com")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("hello"))
	}))
	s.TLS = tlsfile.New(tlsfile.Files{Cert: cert, Key: key}).Server("http/1.1")
	s.StartTLS()
	defer s.Close()
	for _, tc := range []struct {
		max uint16
		ok  bool
	}{{0, true}, {0x0303, false}} {
		if err := fetch(t, s.URL, ca, tc.max); (err == nil) != tc.ok {
			t.Errorf("version %#x: %v", tc.max, err)
		}
	}
}
