package httpproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/l7/config"
	"myelin/policy"
)

// echoServer speaks HTTP/1 and HTTP/2 without TLS: it returns the body, with the method and path in headers.
func echoServer(t testing.TB) string {
	listener := listen(t)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // HTTP/2 does so anyway
		w.Header().Set("X-Seen", r.Method+" "+r.Host+" "+r.RequestURI)
		w.Header().Set("X-Added", r.Header.Get("X-Added"))
		w.Header().Set("Trailer", "X-Sum")
		n, _ := io.Copy(w, r.Body)
		w.Header().Set("X-Sum", fmt.Sprint(n))
	})
	server := &http.Server{Handler: h2c.NewHandler(echo, &http2.Server{})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// client2 speaks HTTP/2 with prior knowledge.
func client2(t testing.TB, address string) *http.Client {
	transport := &http2.Transport{AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestHTTP2(t *testing.T) {
	r := newRig(t, echoServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "GET|POST", Path: "/a/.*",
		Host: "server:80", HeaderMatches: []policy.HeaderMatch{{Name: "X-Added", Value: "1", Mismatch: "ADD"}}}}))
	client := client2(t, r.address)
	large := strings.Repeat("0123456789", 200_000)
	for _, test := range []struct {
		method, url, body string
		status            int
		seen              string
	}{
		{"GET", "http://server:80/a/b", "", 200, "GET server:80 /a/b"},
		{"GET", "http://server:80/a/./c/../b//d?x=%2f", "", 200, "GET server:80 /a/b/d?x=%2f"},
		{"POST", "http://server:80/a/b", large, 200, "POST server:80 /a/b"},
		{"POST", "http://server:80/c", large, 403, ""},
		{"DELETE", "http://server:80/a/b", "", 403, ""},
		{"GET", "http://server:81/a/b", "", 403, ""},
		{"GET", "http://server:80/a/%2e%2e/c", "", 403, ""},
		{"GET", "http://server:80/a/%2f", "", 400, ""},
	} {
		var all sync.WaitGroup
		for range 8 { // streams of one connection
			all.Go(func() {
				request, _ := http.NewRequest(test.method, test.url, strings.NewReader(test.body))
				response, err := client.Do(request)
				if err != nil {
					t.Errorf("%s %s: %v", test.method, test.url, err)
					return
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if err != nil || response.StatusCode != test.status || response.Header.Get("X-Seen") != test.seen {
					t.Errorf("%s %s: %s, the server saw %q: %v", test.method, test.url, response.Status,
						response.Header.Get("X-Seen"), err)
				}
				if test.status != 200 {
					if test.status == 403 && string(body) != "Access denied\r\n" {
						t.Errorf("%s %s: %q", test.method, test.url, body)
					}
					return
				}
				if !bytes.Equal(body, []byte(test.body)) || response.Trailer.Get("X-Sum") != fmt.Sprint(len(body)) ||
					response.Header.Get("X-Added") != "1" {
					t.Errorf("%s %s: %d bytes, trailer %v", test.method, test.url, len(body), response.Trailer)
				}
			})
		}
		all.Wait()
	}
	if r.dials != 1 {
		t.Errorf("%d connections to the server", r.dials)
	}
}

// grpcServer streams back what it gets, with a trailer.
func grpcServer(t testing.TB) string {
	listener := listen(t)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		stream.SetTrailer(metadata.Pairs("x-trailer", "end"))
		for {
			var m wrapperspb.StringValue
			if err := stream.RecvMsg(&m); err == io.EOF {
				return status.Error(codes.AlreadyExists, "told so")
			} else if err != nil {
				return err
			}
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}))
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func TestGRPC(t *testing.T) {
	r := newRig(t, grpcServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "POST", Path: "/test.Echo/.*"}}))
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	description := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	for range 3 {
		stream, err := conn.NewStream(t.Context(), description, "/test.Echo/Talk")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 { // each answer comes before the next question
			sent := wrapperspb.String(strings.Repeat("x", i*2000))
			var got wrapperspb.StringValue
			if err := stream.SendMsg(sent); err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&got); err != nil || got.Value != sent.Value {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		stream.CloseSend()
		err = stream.RecvMsg(&wrapperspb.StringValue{})
		if status.Code(err) != codes.AlreadyExists || stream.Trailer().Get("x-trailer")[0] != "end" {
			t.Errorf("end of stream: %v, trailer %v", err, stream.Trailer())
		}
		err = conn.Invoke(t.Context(), "/test.Other/Talk", wrapperspb.String("a"), &wrapperspb.StringValue{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("denied: %v", err)
		}
	}
	if n := len(r.recorded()); n != 6 || r.dials != 1 {
		t.Errorf("%d records, %d connections to the server", n, r.dials)
	}
}

func TestGRPCUnavailable(t *testing.T) {
	closed := listen(t)
	closed.Close()
	r := newRig(t, closed.Addr().String(), config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "POST"}}))
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Invoke(t.Context(), "/test.Echo/Talk", wrapperspb.String("a"), &wrapperspb.StringValue{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}
